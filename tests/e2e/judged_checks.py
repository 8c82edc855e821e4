"""What a training whose judge fails in every way must have left behind: each check raises AssertionError, or
KeyError for a metric that is not there.

Two terms ask a judge whose replies depend on the question and the answer (`behaviour`): `judged`, which meets
a judge that says nothing, declines, or writes something else; and `bounded`, which always gets a verdict but
may send only a few requests. A judge's failure is not in `rag_r1.failures.mask`, so these trajectories are
trained on, where a wrong reward would do harm. tests/e2e/test_judged_checks.py spoils the files and sees that
a check notices.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from rag_r1.agent.records import read_records, records_by_step
from tests.e2e.left_behind import json_lines, step_metrics

JUDGED, BOUNDED = "judged", "bounded"
#: What becomes of a question and an answer, and the reason that the record then has.
FAILURES = {
    "silence": r"no answer within|nothing within",
    "refusal": "the judge declined",
    "garbage": "reply is none of",
}
SPENT = r"max_requests \(\d+\) have been sent"
Record = dict[str, Any]


def behaviour(question: str, answer: str) -> str:
    """`correct`, `incorrect`, or one of FAILURES: drawn by lot, so that it has nothing to do with EM."""
    drawn = hashlib.sha256(json.dumps([question, answer]).encode()).digest()[0] % 8
    return (*FAILURES, *FAILURES, "correct", "incorrect")[drawn]


@dataclass(frozen=True)
class JudgedRun:
    """The finished training."""

    out: Path
    weights: dict[str, float]  # of all terms
    steps: int
    samples: int  # trajectories of a step
    received: dict[str, int]  # requests that reached the judge, by term
    most: int  # requests that `bounded` may send

    @cached_property
    def trained(self) -> dict[int, list[Record]]:
        """The trajectories of each step."""
        return records_by_step(self.out / "trajectories" / "train")

    @cached_property
    def records(self) -> list[Record]:
        """All trajectories, also those of the validations."""
        return list(read_records(self.out / "trajectories"))


def every_failure_was_met(run: JudgedRun) -> None:
    met = {behaviour(*case) for record in run.records if (case := case_of(record))}
    assert met == {*FAILURES, "correct", "incorrect"}
    assert {record["rewards"][BOUNDED] is None for record in run.records} == {True, False}


def a_verdict_counts_and_a_failure_leaves_the_term_out(run: JudgedRun) -> None:
    values = {"correct": 1.0, "incorrect": 0.0, **dict.fromkeys(FAILURES)}
    for record in run.records:
        case, rewards = case_of(record), record["rewards"]
        assert rewards[JUDGED] == (0.0 if case is None else values[behaviour(*case)])


def no_more_is_sent_than_allowed_and_later_answers_are_left_out(run: JudgedRun) -> None:
    judged = {case for record in run.records if (case := case_of(record)) and is_known(record, BOUNDED)}
    assert len(judged) == run.received[BOUNDED] == run.most


def the_score_is_the_sum_of_the_terms_that_are_left(run: JudgedRun) -> None:
    for record in run.records:
        known = [
            weight * record["rewards"][name] for name, weight in run.weights.items() if is_known(record, name)
        ]
        assert record["rewards"]["score"] == pytest.approx(math.fsum(known))
        assert math.fsum(record["turn_scores"]) == record["rewards"]["score"]


def what_is_left_out_is_counted_and_its_reason_is_recorded(run: JudgedRun) -> None:
    for record in run.records:
        missing = [name for name in (JUDGED, BOUNDED) if not is_known(record, name)]
        assert record["rewards"]["missing_terms"] == len(missing)
        details = [failure["detail"] for failure in record["failures"] if failure["kind"] == "judge"]
        assert len(details) == bool(missing)
        for name in missing:
            why = SPENT if name == BOUNDED else FAILURES[behaviour(*case_of(record))]
            assert re.search(rf"\b{name} \(.*({why})", details[0])


def the_metrics_of_a_step_say_it(run: JudgedRun) -> None:
    metrics = step_metrics(run.out / "metrics.jsonl")
    assert sorted(metrics) == sorted(run.trained) == list(range(1, run.steps + 1))
    for step, records in run.trained.items():
        data = metrics[step]
        for name in (JUDGED, BOUNDED, "missing_terms", "score"):
            known = [record["rewards"][name] for record in records if is_known(record, name)]
            assert not known or data[f"search/{name}"] == pytest.approx(sum(known) / len(known))
        flagged = sum(any(failure["kind"] == "judge" for failure in record["failures"]) for record in records)
        assert data["search/failed_judge"] == pytest.approx(flagged / len(records))
        assert data["search/masked"] == data["search/left_out"] == 0
        assert data["critic/score/mean"] == pytest.approx(data["search/score"], abs=1e-5)  # 2^-16 apart


def every_trajectory_is_trained_on(run: JudgedRun) -> None:
    assert {len(records) for records in run.trained.values()} == {run.samples}
    assert len(json_lines(run.out / "actor.jsonl")) == run.steps * run.samples


def case_of(record: Record) -> tuple[str, str] | None:
    """What the judge is asked about; None if there is no answer."""
    answer = record["answer"]
    return (record["question"], answer) if (answer or "").strip() else None


def is_known(record: Record, name: str) -> bool:
    return record["rewards"][name] is not None


CHECKS = (
    every_failure_was_met,
    a_verdict_counts_and_a_failure_leaves_the_term_out,
    no_more_is_sent_than_allowed_and_later_answers_are_left_out,
    the_score_is_the_sum_of_the_terms_that_are_left,
    what_is_left_out_is_counted_and_its_reason_is_recorded,
    the_metrics_of_a_step_say_it,
    every_trajectory_is_trained_on,
)
