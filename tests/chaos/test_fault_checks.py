"""The checks of a training with faults notice when something in what it has left behind is wrong.

In the recorded run the second life was killed before it wrote the metrics of its step; the run here has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos import fault_checks
from tests.chaos.fault_checks import CHECKS, FaultyRun
from tests.e2e.left_behind import generated, json_lines
from tests.e2e.mutations import (
    copied,
    each,
    fields,
    lines,
    metrics,
    named,
    proofs,
    rows_changed,
    unpack,
    write_lines,
)

STEPS, QUESTIONS, GROUP = 4, 4, 8
SAMPLES = QUESTIONS * GROUP
FAULTS = ("none", "delayed", "500", "truncated", "shape", "away")
LIVES = ("inside_a_step", "between_steps", "full_disk")
#: Of step 2, as its records and the actor's rows tell.
COUNTED_IN_STEP_2 = {
    "left_out": 7.0,
    "masked": 7 / SAMPLES,
    "failed_retriever": 3 / SAMPLES,
    "failed_engine": 4 / SAMPLES,
}

ACTOR = "actor.jsonl"
FIRST, SECOND, THIRD = (f"{name}.jsonl" for name in LIVES)
STEP1, CUT_OFF, STEP3 = (
    f"trajectories/train/step_{name}.jsonl" for name in ("000001-8257", "000002-8257", "000003-26211")
)
first, third, step1, step3, actor = (partial(lines, name) for name in (FIRST, THIRD, STEP1, STEP3, ACTOR))
every = partial(lines, "trajectories/train/*.jsonl")
logged = partial(metrics, THIRD, 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> FaultyRun:
    out = unpack("faults", tmp_path_factory.mktemp("faulty"))
    data = {f"search/{name}": value for name, value in COUNTED_IN_STEP_2.items()}
    third_step = json_lines(out / THIRD)[0]
    write_lines(out / SECOND, [{"step": 2, "data": {**third_step["data"], **data}}])
    return FaultyRun(
        out,
        policy_path("rag_r1_mq"),
        lives=LIVES,
        checkpoints=[0, 1, 2],
        answers=Counter(FAULTS),
        kills=3,
        steps=STEPS,
        questions=QUESTIONS,
        group=GROUP,
    )


def checkpoint_of_step_3(run: FaultyRun) -> None:
    (run.out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")


def without_metrics_of_life_2(run: FaultyRun) -> None:
    """As when that life was killed before it wrote them; nothing is wrong with that."""
    (run.out / SECOND).write_text("")


def without_metrics(change: Callable[[list], Any]) -> Callable[[FaultyRun], None]:
    """Changes the actor's rows, where nothing tells how many there must be."""

    def change_both(run: FaultyRun) -> None:
        without_metrics_of_life_2(run)
        actor(change)(run)

    return change_both


def trained(rows: list[dict]) -> dict:
    """A row that is no padding."""
    return next(row for row in rows if generated(row))


def step_4_is_dumped(run: FaultyRun) -> None:
    step_4 = [{**record, "step": 4} for record in json_lines(run.out / STEP3)]
    write_lines(run.out / STEP3.replace("000003", "000004"), step_4)


def all_failed(kind: str) -> Callable[[FaultyRun], None]:
    """Every failure is of this kind."""
    return every(each(lambda record: [note.update(kind=kind) for note in record["failures"]]))


def one_more(kind: str) -> Callable[[FaultyRun], None]:
    return step1(lambda records: records[0].update(failures=[{"kind": kind, "turn": 0, "detail": ""}]))


def refilled(batches: float) -> Callable[[FaultyRun], None]:
    return first(lambda entries: entries[0]["data"].update({"search/refilled_batches": batches}))


GOES_ON, AGAIN_CHECK, FAILED, FLAGGED, COUNTED, TRAINED, DISK = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "step 1 leaves no metrics": (first(list.clear), GOES_ON),
    "a step that was done is done again": (
        third(lambda e: e.insert(0, {**e[0], "step": 2})), GOES_ON,
    ),
    "a step is left out after a life": (third(lambda e: e.pop(0)), GOES_ON),
    "the second life goes beyond its step": (
        lines(SECOND, lambda e: e.append({**e[-1], "step": 3})), GOES_ON,
    ),
    "a life begins from an older checkpoint": (fields(checkpoints=[0, 1, 1]), GOES_ON),
    "the last checkpoint is not that of the last step": (checkpoint_of_step_3, GOES_ON),
    "the step that was cut off has other questions when played again": (
        lines(CUT_OFF, lambda r: r[0].update(id="train-0#0")), AGAIN_CHECK,
    ),
    "a question of step 1 is asked in step 3": (step3(lambda r: r[1].update(id="train-3097#0")), AGAIN_CHECK),
    "the server was killed twice only": (fields(kills=2), FAILED),
    **{
        f"no answer was {fault}": (fields(answers=Counter({*FAULTS} - {fault})), FAILED) for fault in FAULTS
    },
    "no search failed for good": (every(each(lambda r: r["failures"].clear())), FAILED),
    "nothing was tried again": (every(each(lambda r: r.update(retries=0))), FAILED),
    "a failure is a bug of ours": (one_more("error"), FAILED),
    "a judge failed": (one_more("judge"), FAILED),
    "no search failed, but something else": (all_failed("engine"), FAILED),
    "no generation failed, but something else": (all_failed("retriever"), FAILED),
    "a step has no metrics": (third(lambda e: e.pop(0)), FLAGGED),
    "a sample is lost": (logged(lost=1.0), FLAGGED),
    "a sample is not counted": (logged(samples=SAMPLES - 1.0), FLAGGED),
    "the count of lost samples is not logged": (logged(lost=None), FLAGGED),
    "a masked sample stays in the batch": (logged(left_out=0.0), FLAGGED),
    "more left out than masked and their siblings": (logged(left_out=26.0), FLAGGED),
    "a batch with nothing in it": (logged(left_out=32.0, masked=1.0), FLAGGED),
    "seven batches are asked for": (refilled(6.0), FLAGGED),
    "a failure is not counted": (logged(failed_retriever=0.0), COUNTED),
    "a failure is counted as another": (all_failed("engine"), COUNTED),
    "a failure is counted that is not recorded": (metrics(FIRST, 1, failed_engine=6 / SAMPLES), COUNTED),
    "a masked trajectory is not counted": (logged(masked=0.0), COUNTED),
    "a masked trajectory has a score": (step3(lambda r: r[-1].update(rewards={"score": 0.0})), COUNTED),
    **rows_changed(TRAINED),
    "a resumed step is trained on twice": (actor(lambda r: r.extend(r[32:64])), TRAINED),
    "a masked trajectory is trained on in the place of another": (
        actor(lambda r: trained(r)["responses"].reverse()), TRAINED,
    ),
    "a row is missing, and nothing tells how many there must be": (
        without_metrics(lambda r: r.remove(trained(r))), TRAINED,
    ),
    "three steps are not trained on": (
        without_metrics(lambda r: r.__delitem__(slice(0, 3 * SAMPLES))), TRAINED,
    ),
    "a row is there again and again, and nothing tells how many there must be": (
        without_metrics(lambda r: r.extend([trained(r)] * SAMPLES)), TRAINED,
    ),
    "the full disk is not counted": (metrics(THIRD, 4, undumped=0.0), DISK),
    "records are not dumped though there is space": (logged(undumped=1 / SAMPLES), DISK),
    "the full disk is not full": (step_4_is_dumped, DISK),
    "a record is lost": (step1(list.pop), DISK),
    "a record is lost of the step played twice": (
        lines("trajectories/train/step_000002-*.jsonl", lambda r: r.remove(named(r, "train-22#3"))), DISK,
    ),
    "a record is dumped twice": (step1(lambda r: r.append(r[0])), DISK),
    "a batch was refilled that left no records": (refilled(1.0), DISK),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_life_that_is_killed_before_it_wrote_its_metrics_passes(finished, tmp_path, check):
    run = copied(finished, tmp_path)
    without_metrics_of_life_2(run)
    check(run)


globals().update(proofs(fault_checks, CHECKS, MUTATIONS))
