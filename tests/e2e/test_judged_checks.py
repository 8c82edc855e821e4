"""The checks of a training with a failing judge notice when something is wrong."""

from __future__ import annotations

from functools import partial

import pytest

from tests.e2e import judged_checks
from tests.e2e.judged_checks import (
    BOUNDED,
    CHECKS,
    FAILURES,
    JUDGED,
    JudgedRun,
    Record,
    behaviour,
    case_of,
    is_known,
)
from tests.e2e.mutations import each, fields, lines, metrics, proofs, unpack

WEIGHTS = {"em": 1.0, "turn_cost": -0.05, JUDGED: 0.5, BOUNDED: 0.25}
STEPS, SAMPLES, MOST = 2, 32, 5
METRICS = "metrics.jsonl"
every = partial(lines, "trajectories/**/*.jsonl")
step1 = partial(lines, "trajectories/train/step_000001-*.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> JudgedRun:
    out = unpack("judged", tmp_path_factory.mktemp("judged"))
    return JudgedRun(out, WEIGHTS, STEPS, SAMPLES, {BOUNDED: MOST}, MOST)


def of(kind: str, change):
    """Changes the first trajectory of step 1 of which the judge says this."""

    def is_of(record: Record) -> bool:
        return (case := case_of(record)) is not None and behaviour(*case) == kind

    return step1(lambda records: change(next(filter(is_of, records))))


def rewards(kind: str, **values: float | None):
    return of(kind, lambda record: record["rewards"].update(values))


def never(kind: str):
    """No answer is met with this; its trajectories have none."""

    def change(record: Record) -> None:
        if (case := case_of(record)) and behaviour(*case) == kind:
            record["answer"] = None

    return every(each(change))


def all_bounded(value: float | None):
    return every(each(lambda record: record["rewards"].update({BOUNDED: value})))


def reason(kind: str, old: str, new: str):
    """Other words in the reason that is recorded of a judge's failure."""

    def change(record: Record) -> None:
        note = record["failures"][0]
        assert old in note["detail"]
        note["detail"] = note["detail"].replace(old, new)

    return of(kind, change)


def without_request(records: list[Record]) -> None:
    """The first answer for which the bound left no request has a verdict."""
    record = next(record for record in records if case_of(record) and not is_known(record, BOUNDED))
    record["rewards"][BOUNDED] = 1.0


MET, VALUES, SPENT, SUM, FLAGGED, LOGGED, TRAINED = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    **{f"{kind} is never met": (never(kind), MET) for kind in FAILURES},
    "the bound is never reached": (all_bounded(1.0), MET),
    "nothing is judged within the bound": (all_bounded(None), MET),
    "silence counts as wrong": (rewards("silence", judged=0.0), VALUES),
    "a refusal counts as wrong": (rewards("refusal", judged=0.0), VALUES),
    "garbage counts as right": (rewards("garbage", judged=1.0), VALUES),
    "a verdict is left out": (rewards("correct", judged=None), VALUES),
    "a request too many reached the judge": (fields(received={BOUNDED: MOST + 1}), SPENT),
    "an answer is judged without a request": (step1(without_request), SPENT),
    "the score is without a term": (rewards("correct", score=-9.0), SUM),
    "a term that is left out costs something": (rewards("refusal", score=-9.0), SUM),
    "the turns do not sum to the score": (of("correct", lambda r: r["turn_scores"].append(0.5)), SUM),
    "a term that is left out is not counted": (rewards("silence", missing_terms=0.0), FLAGGED),
    "a term that is left out is not flagged": (of("garbage", lambda r: r["failures"].clear()), FLAGGED),
    "only one of two terms is named": (reason("garbage", JUDGED, "other"), FLAGGED),
    "the reason is another": (reason("silence", "no answer within", "declined"), FLAGGED),
    "a step is not logged": (lines(METRICS, list.pop), LOGGED),
    "a term that is left out is 0 in the mean": (metrics(METRICS, 1, **{"search/judged": 0.01}), LOGGED),
    "the failures are not logged": (metrics(METRICS, 1, failed_judge=None), LOGGED),
    "the failures are counted wrongly": (metrics(METRICS, 1, failed_judge=0.1), LOGGED),
    "a trajectory is masked": (metrics(METRICS, 1, **{"search/masked": 0.1}), LOGGED),
    "veRL trains on another score": (metrics(METRICS, 1, **{"critic/score/mean": 0.1}), LOGGED),
    "a record is lost": (step1(list.pop), TRAINED),
    "a trajectory is not trained on": (lines("actor.jsonl", list.pop), TRAINED),
}  # fmt: skip

globals().update(proofs(judged_checks, CHECKS, MUTATIONS))
