"""The benchmark of the teacher's questions: its arms, what it counts as wrong, and its claims."""

from __future__ import annotations

import json

import pytest

from benchmarks import own_questions as benchmark
from benchmarks.own_questions import (
    ARMS,
    Training,
    claims,
    em_in_other_wordings,
    questions_of,
    table_row,
    wording,
    wrong_share,
)
from rag_r1.data.rows import QuestionRow, read_rows, write_rows
from rag_r1.demo.world import demo_data
from rag_r1.runs.errors import RunError


def training(arm: str, seed: int, em: float) -> Training:
    figures = {"EM one_hop": em, "EM all": em, "searches a question": 1.0, "turns a question": 2.0}
    results = {"held_out": {"0": {**figures, "EM all": 0.25}, "18": figures, "6": figures}}
    return Training(arm, seed, results, 0.1, em / 2)


def test_a_row_goes_from_the_first_validation_to_the_last():
    assert table_row(training("own", 3, 0.5)) == [
        *("own", "3", "10%", "0.50 → 0.50", "0.25 → 0.50", "0.25", "1.0 → 1.0"),
    ]


@pytest.mark.parametrize(
    ("verified", "unverified", "reworded", "held"),
    [
        (0.86, 0.5, 0.9, (1, 1, 1, 1, 1)),
        (0.84, 0.5, 0.8, (1, 1, 0, 0, 1)),
        (0.8, 0.5, 0.82, (0, 0, 1, 0, 1)),
        (0.9, 0.89, 0.1, (1, 1, 0, 1, 0)),
    ],
)
def test_a_claim_counts_the_seeds_in_which_it_held(verified, unverified, reworded, held):
    ems = dict(zip(ARMS, (0.9, verified, unverified, reworded), strict=True))
    runs = [training(arm, 0, em) for arm, em in ems.items()] + [training("own", 1, 0.5)]
    assert tuple(claim.held for claim in claims(runs)) == held
    assert all(claim.of == 1 for claim in claims(runs)), "a seed without all arms does not count"


def test_the_em_in_other_wordings_is_that_of_the_last_validation_without_the_teachers_wordings(tmp_path):
    known = [QuestionRow("Where was Ann Lee born?", golds=("Ulm",))]
    write_rows(tmp_path / "questions.parquet", known)
    val = tmp_path / "trajectories" / "val"
    val.mkdir(parents=True)
    answers = {"Where was Bo Ray born?": "Ulm", "When was Bo Ray born?": "1903", "Who founded Cy Fox?": "x"}
    for step, right in (("000006", ""), ("000018", "1903")):
        records = [{"question": q, "answer": a, "golds": [right]} for q, a in answers.items()]
        (val / f"step_{step}-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert em_in_other_wordings(tmp_path, tmp_path / "questions.parquet") == 0.5


@pytest.mark.slow
def test_all_arms_have_as_many_questions_and_only_the_unverified_ones_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "QUESTIONS", 20)
    monkeypatch.setattr(benchmark, "PER_KIND", 12)
    files = questions_of(tmp_path, 5)
    rows = {arm: [QuestionRow.from_row(row) for row in read_rows(path)] for arm, path in files.items()}
    assert {len(of_arm) for of_arm in rows.values()} == {20}
    data = demo_data(5)
    texts = [passage["contents"] for passage in data.passages]
    assert wrong_share(rows["verified"], texts) == 0.0 < wrong_share(rows["unverified"], texts)
    wordings = {wording(question.text) for question in (*data.train, *data.val)}
    assert not any(wording(row.question) in wordings for row in rows["reworded"])
    assert {"Where were ... and ... born?", "When was ... born?"} <= wordings - set(
        wording(row.question) for row in rows["verified"]
    )
    held_out = {fact.entity for question in data.val for fact in question.lookups}
    assert not any(name in row.question for name in held_out for of_arm in rows.values() for row in of_arm)
    times = [path.stat().st_mtime_ns for path in files.values()]
    assert questions_of(tmp_path, 5) == files and [p.stat().st_mtime_ns for p in files.values()] == times


@pytest.mark.slow
def test_too_few_questions_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "PER_KIND", 2)
    with pytest.raises(RunError, match="verified: .* are fewer than 400"):
        questions_of(tmp_path, 5)
