"""The checks of a training with faults notice when something in what it has left behind is wrong.

The run here is made by hand, of the demo's traces: four steps of two groups of four. In step 2 the first life
was killed after three trajectories. In step 3 a search and a generation failed for good, so their
trajectories are masked; step 4 could not be dumped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos import fault_checks
from tests.chaos.fault_checks import CHECKS, FaultyRun
from tests.e2e.left_behind import json_lines
from tests.e2e.made_runs import (
    by_step,
    copied,
    fields,
    lines,
    metrics,
    play,
    proofs,
    write_lines,
    write_metrics,
    write_records,
)

STEPS, QUESTIONS, GROUP = 4, 2, 4
SAMPLES = QUESTIONS * GROUP
FAULTS = ("none", "delayed", "500", "truncated", "shape", "away")
LOGGED = {
    "search/samples": float(SAMPLES),
    "search/lost": 0.0,
    "search/left_out": 0.0,
    "search/masked": 0.0,
    "search/undumped": 0.0,
    "search/failed_retriever": 0.0,
    "search/failed_engine": 0.0,
}
MASKED = {
    "search/left_out": 2.0,
    "search/masked": 2 / SAMPLES,
    "search/failed_retriever": 1 / SAMPLES,
    "search/failed_engine": 1 / SAMPLES,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> FaultyRun:
    out = tmp_path_factory.mktemp("faulty")
    played = play(STEPS * QUESTIONS, GROUP)
    records, rows = by_step(played.records, SAMPLES), by_step(played.rows, SAMPLES)
    for record, kind in zip(records[3], ("retriever", "engine"), strict=False):
        failure = {"kind": kind, "turn": 0, "detail": ""}
        record |= {"failures": [failure], "retries": int(kind == "retriever"), "rewards": {"score": None}}
    padding = [{**rows[3][0], "response_mask": [0] * len(rows[3][0]["responses"])}]
    write_lines(out / "actor.jsonl", [*rows[1], *rows[2], *rows[3][2:], *padding, *rows[4]])
    write_records(out, records[1], 1, process=1)
    write_records(out, records[2][:3], 2, process=1)
    write_records(out, records[2], 2, process=2)
    write_records(out, records[3], 3, process=3)
    for path in (out / "trajectories" / "train").iterdir():
        process = int(path.stem.rpartition("-")[2])
        os.utime(path, (process, process))
    write_metrics(out / "first.jsonl", {1: LOGGED})
    write_metrics(out / "second.jsonl", {2: LOGGED})
    write_metrics(out / "third.jsonl", {3: {**LOGGED, **MASKED}, 4: {**LOGGED, "search/undumped": 1.0}})
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(STEPS))
    return FaultyRun(
        out,
        policy_path("rag_r1_mq"),
        lives=("first", "second", "third"),
        checkpoints=[0, 1, 2],
        answers=Counter(FAULTS),
        kills=3,
        steps=STEPS,
        questions=QUESTIONS,
        group=GROUP,
    )


ACTOR, FIRST, SECOND, THIRD = "actor.jsonl", "first.jsonl", "second.jsonl", "third.jsonl"
STEP1, CUT_OFF, AGAIN, STEP3 = (
    f"trajectories/train/step_{name}.jsonl" for name in ("000001-1", "000002-1", "000002-2", "000003-3")
)
first, third, step1, step3, actor = (partial(lines, name) for name in (FIRST, THIRD, STEP1, STEP3, ACTOR))
logged = partial(metrics, THIRD, 3)


def checkpoint_of_step_3(run: FaultyRun) -> None:
    (run.out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")


def without_metrics_of_life_2(run: FaultyRun) -> None:
    """As when that life was killed before it wrote them; nothing is wrong with that."""
    (run.out / SECOND).write_text("")


def missing_without_metrics(rows_missing: slice) -> Callable[[FaultyRun], None]:
    def spoil(run: FaultyRun) -> None:
        without_metrics_of_life_2(run)
        actor(lambda rows: rows.__delitem__(rows_missing))(run)

    return spoil


def doubled_without_metrics(run: FaultyRun) -> None:
    without_metrics_of_life_2(run)
    actor(lambda rows: rows.append(rows[8]))(run)


def unmask(rows: list[dict]) -> None:
    """The row of the masked trajectory, which pads the batch, in the place of the one before it."""
    (masked,) = (row for row in rows if not any(row["response_mask"]))
    masked["response_mask"] = masked["loss_mask"][-len(masked["responses"]) :]
    rows.pop(rows.index(masked) - 1)


def step_4_is_dumped(run: FaultyRun) -> None:
    write_records(run.out, json_lines(run.out / STEP3), 4)


def every(kind: str):
    def change(records: list[dict]) -> None:
        for record in records:
            for note in record["failures"]:
                note["kind"] = kind

    return lines("trajectories/train/*.jsonl", change)


def one_more(kind: str):
    failures = [{"kind": kind, "turn": 0, "detail": ""}]
    return step1(lambda records: records[0].update(failures=failures))


def refilled(batches: float):
    data = {"search/refilled_batches": batches}
    return first(lambda entries: entries[0]["data"].update(data))


GOES_ON, AGAIN_CHECK, FAILED, FLAGGED, COUNTED, TRAINED, DISK = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "step 1 leaves no metrics": (first(list.clear), GOES_ON),
    "a step that was done is done again": (
        third(lambda e: e.insert(0, {"step": 2, "data": LOGGED})), GOES_ON,
    ),
    "a step is left out after a life": (third(lambda e: e.pop(0)), GOES_ON),
    "the second life goes beyond its step": (
        lines(SECOND, lambda e: e.append({"step": 3, "data": LOGGED})), GOES_ON,
    ),
    "a life begins from an older checkpoint": (fields(checkpoints=[0, 1, 1]), GOES_ON),
    "the last checkpoint is not that of the last step": (checkpoint_of_step_3, GOES_ON),
    "the step that was cut off has other questions when played again": (
        lines(CUT_OFF, lambda r: r[0].update(id="q9#0")), AGAIN_CHECK,
    ),
    "a question of step 1 is asked in step 3": (step3(lambda r: r[1].update(id="q0#0")), AGAIN_CHECK),
    "the server was killed twice only": (fields(kills=2), FAILED),
    **{
        f"no answer was {fault}": (fields(answers=Counter({*FAULTS} - {fault})), FAILED) for fault in FAULTS
    },
    "no search failed for good": (step3(lambda r: r[0]["failures"].clear()), FAILED),
    "nothing was tried again": (step3(lambda r: r[0].update(retries=0)), FAILED),
    "a failure is a bug of ours": (one_more("error"), FAILED),
    "a judge failed": (one_more("judge"), FAILED),
    "no search failed, but something else": (every("engine"), FAILED),
    "no generation failed, but something else": (every("retriever"), FAILED),
    "a step has no metrics": (third(lambda e: e.pop(0)), FLAGGED),
    "a sample is lost": (logged(lost=1.0), FLAGGED),
    "a sample is not counted": (logged(samples=SAMPLES - 1.0), FLAGGED),
    "the count of lost samples is not logged": (logged(lost=None), FLAGGED),
    "a masked sample stays in the batch": (logged(left_out=0.0), FLAGGED),
    "more left out than masked and their siblings": (logged(left_out=5.0), FLAGGED),
    "a batch with nothing in it": (logged(left_out=8.0, masked=1.0), FLAGGED),
    "seven batches are asked for": (refilled(6.0), FLAGGED),
    "a failure is not counted": (logged(failed_retriever=0.0), COUNTED),
    "a failure is counted as another": (every("engine"), COUNTED),
    "a failure is counted that is not recorded": (metrics(FIRST, 1, failed_engine=1 / SAMPLES), COUNTED),
    "a masked trajectory is not counted": (logged(masked=0.0), COUNTED),
    "a masked trajectory has a score": (step3(lambda r: r[0].update(rewards={"score": 0.0})), COUNTED),
    "a trajectory is trained on twice": (actor(lambda r: r.append(r[0])), TRAINED),
    "a resumed step is trained on twice": (actor(lambda r: r.extend(r[8:16])), TRAINED),
    "a trajectory is not trained on": (actor(lambda r: r.pop(0)), TRAINED),
    "a masked trajectory is trained on in the place of another": (actor(unmask), TRAINED),
    "one trajectory is trained on in the place of another": (
        actor(lambda r: r.__setitem__(1, r[0])), TRAINED,
    ),
    "a row is missing, and nothing tells how many there must be": (
        missing_without_metrics(slice(8, 9)), TRAINED,
    ),
    "two steps are not trained on": (missing_without_metrics(slice(0, 2 * SAMPLES + 1)), TRAINED),
    "a row is twice there, and nothing tells how many there must be": (doubled_without_metrics, TRAINED),
    "the full disk is not counted": (metrics(THIRD, 4, undumped=0.0), DISK),
    "records are not dumped though there is space": (logged(undumped=1 / SAMPLES), DISK),
    "the full disk is not full": (step_4_is_dumped, DISK),
    "a record is lost": (step1(list.pop), DISK),
    "a record is lost of the step played again": (lines(AGAIN, list.pop), DISK),
    "a record is dumped twice": (step1(lambda r: r.append(r[0])), DISK),
    "a batch was refilled that left no records": (refilled(1.0), DISK),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_life_that_is_killed_before_it_wrote_its_metrics_passes(written, tmp_path, check):
    run = copied(written, tmp_path)
    without_metrics_of_life_2(run)
    check(run)


globals().update(proofs(fault_checks, CHECKS, SPOILINGS))
