"""The benchmark of the teacher's questions: its arms, what it counts as wrong, and its claims."""

from __future__ import annotations

import pytest

from benchmarks import own_questions as benchmark
from benchmarks.own_questions import (
    ARMS,
    Training,
    claims,
    known_share,
    mixed_share,
    questions_of,
    table_row,
    wrong_questions,
)
from benchmarks.reading_policy import in_teachers_wording, reading_batches
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.demo.policy import demo_tokenizer
from rag_r1.demo.trace_records import warm_traces
from rag_r1.demo.world import demo_data, demo_protocol
from rag_r1.runs.errors import RunError


def training(arm: str, seed: int, em: float) -> Training:
    figures = {"EM one_hop": em, "EM all": em, "searches a question": 1.0, "turns a question": 2.0}
    results = {"held_out": {"0": {**figures, "EM all": 0.25}, "18": figures, "6": figures}}
    return Training(arm, seed, results, 0.1, 0.25, 0.5, None)


def test_a_row_goes_from_the_first_validation_to_the_last():
    assert table_row(training("own", 3, 0.5)) == [
        *("own", "3", "10%", "25%", "50%", "-", "0.50 → 0.50", "0.25 → 0.50", "1.0 → 1.0"),
    ]


@pytest.mark.parametrize(
    ("verified", "unverified", "held"),
    [(0.86, 0.5, (1, 1, 1)), (0.85, 0.84, (1, 1, 0)), (0.84, 0.5, (1, 0, 1)), (0.8, 0.5, (0, 0, 1))],
)
def test_a_claim_counts_the_seeds_in_which_it_held(verified, unverified, held):
    ems = dict(zip(ARMS, (0.9, verified, unverified), strict=True))
    runs = [training(arm, 0, em) for arm, em in ems.items()] + [training("own", 1, 0.5)]
    assert tuple(claim.held for claim in claims(runs)) == held
    assert all(claim.seeds == 1 for claim in claims(runs)), "a seed without a claim's arms does not count"
    assert len(claims(runs[:2])) == 2, "what unverified questions are worth is not judged without them"


def test_a_held_out_question_is_known_if_a_training_question_has_its_wording():
    held_out = ["Where was Bo Ray born?", "When was Bo Ray born?"]
    assert known_share(held_out, ["Where was Ann Lee born?", "Who founded Cy Fox?"]) == 0.5


def test_every_other_question_of_the_reading_policys_warm_start_is_in_a_wording_of_the_teacher():
    tokenizer = demo_tokenizer()
    (batch,) = reading_batches(tokenizer, "rag_r1_mq", "mixed", steps=1, seed=3)
    (traces,) = warm_traces(demo_protocol("rag_r1_mq"), "mixed", 1, 3)
    for index, ((ids, mask), trace) in enumerate(zip(batch, traces, strict=True)):
        text = tokenizer.decode(ids)
        assert (trace.question.text in text) == (index % 2 == 0)
        assert in_teachers_wording(trace.question) in text or index % 2 == 0
        generated = [id_ for id_, weight in zip(ids, mask, strict=True) if weight]
        assert tokenizer.decode(generated) == "".join(s.text for s in trace.segments if s.generated)


def test_a_group_is_mixed_if_some_answers_to_its_question_are_right():
    answers = [("a", 1, 0), ("a", 1, 1), ("a", 2, 1), ("a", 2, 1), ("b", 3, 0), ("b", 3, 1), ("c", 4, 0)]
    records = [{"id": f"{id_}#0", "group": str(group), "rewards": {"em": em}} for id_, group, em in answers]
    assert [mixed_share(records, ids) for ids in ({"a"}, {"a", "b"}, {"c"}, set())] == [1 / 2, 2 / 3, 0, None]


@pytest.mark.slow
def test_all_arms_have_as_many_questions_and_only_the_unverified_ones_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "QUESTIONS", 20)
    monkeypatch.setattr(benchmark, "PER_KIND", 12)
    files = questions_of(tmp_path, 5)
    rows = {arm: [QuestionRow.from_row(row) for row in read_rows(path)] for arm, path in files.items()}
    assert {len(of_arm) for of_arm in rows.values()} == {20}
    data = demo_data(5)
    texts = [passage["contents"] for passage in data.passages]
    assert not wrong_questions(rows["verified"], texts)
    assert 0 < len(wrong_questions(rows["unverified"], texts)) < len(rows["unverified"])
    questions = [question.text for question in (*data.train, *data.val)]
    known = {arm: known_share(questions, [row.question for row in rows[arm]]) for arm in ARMS}
    assert known["own"] > 0.5 and known["verified"] == known["unverified"] == 0.0
    held_out = {fact.entity for question in data.val for fact in question.lookups}
    assert not any(name in row.question for name in held_out for of_arm in rows.values() for row in of_arm)
    times = [path.stat().st_mtime_ns for path in files.values()]
    assert questions_of(tmp_path, 5) == files and [p.stat().st_mtime_ns for p in files.values()] == times


@pytest.mark.slow
def test_too_few_questions_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "PER_KIND", 2)
    with pytest.raises(RunError, match="verified: .* are fewer than 400"):
        questions_of(tmp_path, 5)
