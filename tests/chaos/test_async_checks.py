"""The checks of an asynchronous training notice when something in what it has left behind is wrong.

The run here is made by hand, of the demo's traces: three steps of four trajectories, two more that were not
trained on before the end, and one trajectory of step 3 that spans an update.
"""

from __future__ import annotations

from collections import Counter

import async_checks
import pytest
from async_checks import CHECKS, AsyncRun
from made_runs import (
    fields,
    lines,
    metrics,
    play,
    proofs,
    write_lines,
    write_metrics,
    write_records,
)

from rag_r1.demo.policy import policy_path

STEPS, SAMPLES = 3, 4
LOGGED = {
    "search/samples": float(SAMPLES),
    "search/lost": 0.0,
    "search/left_out": 0.0,
    "search/failed_engine": 0.0,
    "search/failed_error": 0.0,
    "training/rollout_probs_diff_valid": 1.0,
    "training/rollout_probs_diff_max": 1e-6,
    "training/off_policy/trajectory_spans/max": 1,
    "training/off_policy/trajectory_spans/min": 1,
    "training/off_policy/trajectory_staleness/min": 0,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> AsyncRun:
    out = tmp_path_factory.mktemp("async")
    played = play(STEPS * SAMPLES + 2)
    write_lines(out / "actor.jsonl", played.rows[:-2])
    for step in range(1, STEPS + 1):
        write_records(out, played.records[(step - 1) * SAMPLES : step * SAMPLES], step)
    write_records(out, played.records[-2:], STEPS + 1)
    spanning = {**LOGGED, "training/off_policy/trajectory_spans/max": 2}
    write_metrics(out / "run.jsonl", {1: LOGGED, 2: LOGGED, 3: spanning})
    answers = Counter({"held": 1, "none": 20, "delayed": 18})
    return AsyncRun(out, policy_path("rag_r1_mq"), answers, STEPS, SAMPLES)


ACTOR, METRICS, STEP2 = "actor.jsonl", "run.jsonl", "trajectories/train/step_000002-1.jsonl"


def other_token(rows: list[dict]) -> None:
    rows[0]["responses"][1] += 1


def unmask(rows: list[dict]) -> None:
    (row, *_) = (row for row in rows if not all(row["response_mask"]))
    row["response_mask"] = [1] * len(row["response_mask"])


def logged(step: int, **values: float | None):
    return metrics(METRICS, step, **values)


ALL, SAME, SPANS, WRITTEN = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "a step is missing": (lines(METRICS, lambda entries: entries.pop()), ALL),
    "a step too many": (
        lines(METRICS, lambda entries: entries.append({"step": 4, "data": LOGGED})), ALL,
    ),
    "a trajectory is lost": (logged(2, lost=1.0), ALL),
    "a trajectory is left out": (logged(2, left_out=1.0), ALL),
    "the engine failed": (logged(3, failed_engine=0.25), ALL),
    "an episode failed by a bug": (logged(3, failed_error=0.25), ALL),
    "what was lost is not counted": (logged(1, lost=None), ALL),
    "a log-probability belongs to another token": (logged(3, diff_max=0.9), SAME),
    "the probabilities could not be compared": (logged(1, diff_valid=0.0), SAME),
    "the probabilities were not compared": (logged(1, diff_max=None, diff_valid=None), SAME),
    "no step has probabilities": (lines(METRICS, list.clear), SAME),
    "the first search was not held back": (fields(answers=Counter(none=20)), SPANS),
    "the first search was let go before the update": (
        fields(answers=Counter({"held": 0, "given up": 1})), SPANS,
    ),
    "no trajectory spans an update": (logged(3, **{"spans/max": 1}), SPANS),
    "a trajectory has no weight version": (logged(2, **{"spans/min": 0}), SPANS),
    "a trajectory is of weights that are still to come": (logged(2, **{"staleness/min": -1}), SPANS),
    "the versions are not logged": (logged(2, **{"spans/max": None}), SPANS),
    "the staleness is not logged": (logged(2, **{"staleness/min": None}), SPANS),
    "a row is not trained on": (lines(ACTOR, lambda rows: rows.pop()), WRITTEN),
    "a row is trained on twice": (lines(ACTOR, lambda rows: rows.append(rows[0])), WRITTEN),
    "one row in the place of another": (lines(ACTOR, lambda rows: rows.__setitem__(1, rows[0])), WRITTEN),
    "the actor gets another token": (lines(ACTOR, other_token), WRITTEN),
    "an observation is trained on": (lines(ACTOR, unmask), WRITTEN),
    "a record is lost": (lines(STEP2, lambda records: records.pop()), WRITTEN),
    "a record in the place of another": (
        lines(STEP2, lambda records: records.__setitem__(1, {**records[0], "id": "q5#0"})), WRITTEN,
    ),
    "a record holds another text": (lines(STEP2, lambda r: r[0]["turns"][0].update(text="else")), WRITTEN),
}  # fmt: skip


(
    test_a_run_in_order_passes,
    test_what_is_wrong_is_noticed,
    test_every_assertion_of_a_check_fails_at_some_spoiling,
    test_every_check_has_a_spoiling_and_no_check_is_left_out,
) = proofs(async_checks, CHECKS, SPOILINGS)
