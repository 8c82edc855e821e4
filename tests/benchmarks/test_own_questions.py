"""The benchmark of the teacher's questions: its arms, what it counts as wrong, and its claims."""

from __future__ import annotations

import re

import pytest

from benchmarks import own_questions as benchmark
from benchmarks.own_questions import ARMS, Training, claims, questions_of, table_row, wrong_share
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.demo.world import demo_data
from rag_r1.runs.errors import RunError


def training(arm: str, seed: int, em: float) -> Training:
    figures = {"EM one_hop": em, "EM all": em, "searches a question": 1.0, "turns a question": 2.0}
    results = {"held_out": {"0": {**figures, "EM all": 0.25}, "18": figures, "6": figures}}
    return Training(arm, seed, results, 0.1)


def test_a_row_goes_from_the_first_validation_to_the_last():
    assert table_row(training("own", 3, 0.5)) == [
        *("own", "3", "10%", "0.50 → 0.50", "0.25 → 0.50", "1.0 → 1.0"),
    ]


@pytest.mark.parametrize(
    ("own", "verified", "unverified", "held"),
    [
        (0.9, 0.86, 0.5, (1, 1, 1)),
        (0.9, 0.84, 0.5, (1, 0, 1)),
        (0.9, 0.8, 0.5, (0, 0, 1)),
        (0.9, 0.9, 0.89, (1, 1, 0)),
    ],
)
def test_a_claim_counts_the_seeds_in_which_it_held(own, verified, unverified, held):
    ems = dict(zip(ARMS, (own, verified, unverified), strict=True))
    runs = [training(arm, 0, em) for arm, em in ems.items()] + [training("own", 1, 0.5)]
    assert tuple(claim.held for claim in claims(runs)) == held
    assert all(claim.of == 1 for claim in claims(runs)), "a seed without all arms does not count"


def without_names(question: str) -> str:
    return re.sub(r"[A-Z]\w+ [A-Z]\w+", "...", question)


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
    wordings = {without_names(question.text) for question in (*data.train, *data.val)}
    assert not any(without_names(row.question) in wordings for arm in ARMS[1:] for row in rows[arm])
    held_out = {fact.entity for question in data.val for fact in question.lookups}
    assert not any(name in row.question for name in held_out for of_arm in rows.values() for row in of_arm)
    times = [path.stat().st_mtime_ns for path in files.values()]
    assert questions_of(tmp_path, 5) == files and [p.stat().st_mtime_ns for p in files.values()] == times


@pytest.mark.slow
def test_too_few_questions_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "PER_KIND", 2)
    with pytest.raises(RunError, match="verified: .* are fewer than 400"):
        questions_of(tmp_path, 5)
