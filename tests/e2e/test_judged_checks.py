"""The checks of a training with a failing judge notice when something is wrong.

The run here is made by hand, of the demo's traces: two steps of ten trajectories. The judge of `bounded` was
asked four times; the last trajectory has no answer.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from statistics import mean
from typing import Any

import pytest

from tests.e2e import judged_checks
from tests.e2e.judged_checks import BOUNDED, CHECKS, FAILURES, JUDGED, JudgedRun, behaviour
from tests.e2e.made_runs import by_step, fields, lines, metrics, play, proofs, write_run

WEIGHTS = {"em": 1.0, JUDGED: 0.5, BOUNDED: 0.25}
STEPS, SAMPLES, MOST = 2, 10, 4
BEHAVIOURS = ("correct", "incorrect", *FAILURES)
REASONS = {
    "silence": "the judge failed: no answer within 8 s (attempt 1, the last)",
    "refusal": "the judge declined",
    "garbage": "the judge's reply is none of: correct, incorrect",
}


def answer_with(wanted: str) -> str:
    """An answer of which the judge says this."""
    return next(f"Ulm {n}" for n in count() if behaviour("Who?", f"Ulm {n}") == wanted)


def put_rewards(record: dict[str, Any], number: int) -> None:
    """The rewards of trajectory `number`, as a run in order records them."""
    wanted = BEHAVIOURS[number % len(BEHAVIOURS)]
    record |= {"question": "Who?", "answer": answer_with(wanted)}
    judged = {"correct": 1.0, "incorrect": 0.0}.get(wanted)
    bounded = 1.0 if number % len(BEHAVIOURS) < MOST else None
    missing = {}
    if judged is None:
        missing[JUDGED] = REASONS[wanted]
    if bounded is None:
        missing[BOUNDED] = f"the judge is asked no more: max_requests ({MOST}) have been sent"
    if number == STEPS * SAMPLES - 1:
        record["answer"], judged, bounded, missing = None, 0.0, 0.0, {}
    em = float(number % 2)
    score = em + 0.5 * (judged or 0.0) + 0.25 * (bounded or 0.0)
    values = {"em": em, JUDGED: judged, BOUNDED: bounded, "missing_terms": float(len(missing))}
    record["rewards"] = {"score": score, **values}
    record["turn_scores"] = [0.0] * (len(record["turns"]) - 1) + [score]
    told = ", ".join(f"{name} ({why})" for name, why in missing.items())
    record["failures"] = [{"kind": "judge", "turn": 0, "detail": f"no value for {told}"}] if missing else []


def logged(records: list[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a step with these trajectories."""
    terms = (JUDGED, BOUNDED, "missing_terms", "score")
    values = {name: [record["rewards"][name] for record in records] for name in terms}
    means = {f"search/{name}": mean(v for v in given if v is not None) for name, given in values.items()}
    flagged = mean(float(bool(record["failures"])) for record in records)
    none = {"search/masked": 0.0, "search/left_out": 0.0, "search/samples": float(len(records))}
    return {**means, **none, "search/failed_judge": flagged, "critic/score/mean": means["search/score"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> JudgedRun:
    out = tmp_path_factory.mktemp("judged")
    played = play(STEPS * SAMPLES)
    for number, record in enumerate(played.records):
        put_rewards(record, number)
    steps = by_step(played.records, SAMPLES)
    write_run(out, played.rows, steps, {step: logged(records) for step, records in steps.items()})
    return JudgedRun(out, WEIGHTS, STEPS, SAMPLES, {JUDGED: 5, BOUNDED: MOST}, MOST)


ANY, METRICS = "trajectories/train/*.jsonl", "metrics.jsonl"
step1 = partial(lines, "trajectories/train/step_000001-1.jsonl")
#: Positions of BEHAVIOURS.
CORRECT, SILENCE, REFUSAL, GARBAGE = 0, 2, 3, 4


def rewards(number: int, **values: float | None):
    """Another value in the record of a trajectory of step 1."""
    return step1(lambda records: records[number]["rewards"].update(values))


def never(kind: str):
    """No answer is met with this; its trajectories have another one."""

    def change(records: list[dict]) -> None:
        for record in records:
            if record["answer"] == answer_with(kind):
                record["answer"] = answer_with("correct")

    return lines(ANY, change)


def all_bounded(value: float | None):
    def change(records: list[dict]) -> None:
        for record in records:
            record["rewards"][BOUNDED] = value

    return lines(ANY, change)


def with_detail(number: int, detail: str):
    return step1(lambda records: records[number]["failures"][0].update(detail=detail))


MET, VALUES, SPENT, SUM, FLAGGED, LOGGED, TRAINED = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    **{f"{kind} is never met": (never(kind), MET) for kind in FAILURES},
    "the bound is never reached": (all_bounded(1.0), MET),
    "nothing is judged within the bound": (all_bounded(None), MET),
    "silence counts as wrong": (rewards(SILENCE, judged=0.0), VALUES),
    "a refusal counts as wrong": (rewards(REFUSAL, judged=0.0), VALUES),
    "garbage counts as right": (rewards(GARBAGE, judged=1.0), VALUES),
    "a verdict is left out": (rewards(CORRECT, judged=None), VALUES),
    "a request too many reached the judge": (fields(received={BOUNDED: MOST + 1}), SPENT),
    "an answer is judged without a request": (rewards(GARBAGE, bounded=1.0), SPENT),
    "the score is without a term": (rewards(CORRECT, score=0.25), SUM),
    "a term that is left out costs something": (rewards(REFUSAL, score=0.75), SUM),
    "the turns do not sum to the score": (step1(lambda r: r[CORRECT]["turn_scores"].append(0.5)), SUM),
    "a term that is left out is not counted": (rewards(SILENCE, missing_terms=0.0), FLAGGED),
    "a term that is left out is not flagged": (step1(lambda r: r[GARBAGE]["failures"].clear()), FLAGGED),
    "only one of two terms is named": (with_detail(GARBAGE, f"judged ({REASONS['garbage']})"), FLAGGED),
    "the reason is another": (with_detail(SILENCE, f"judged ({REASONS['refusal']})"), FLAGGED),
    "a step is not logged": (lines(METRICS, list.pop), LOGGED),
    "a term that is left out is 0 in the mean": (metrics(METRICS, 1, judged=0.2), LOGGED),
    "the failures are not logged": (metrics(METRICS, 1, failed_judge=None), LOGGED),
    "the failures are counted wrongly": (metrics(METRICS, 1, failed_judge=0.1), LOGGED),
    "a trajectory is masked": (metrics(METRICS, 1, masked=0.1), LOGGED),
    "veRL trains on another score": (metrics(METRICS, 1, **{"critic/score/mean": 0.1}), LOGGED),
    "a record is lost": (step1(list.pop), TRAINED),
    "a trajectory is not trained on": (lines("actor.jsonl", list.pop), TRAINED),
}

globals().update(proofs(judged_checks, CHECKS, SPOILINGS))
