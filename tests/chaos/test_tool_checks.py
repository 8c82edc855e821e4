"""The checks of a training whose tools fail notice when something in what it has left behind is wrong.

The run here is made by hand, of the demo's traces: three steps of two groups of four. In each step a call of
the broken tool, one of the hanging tool and one of the MCP server's tool failed, in the first group, and that
of the MCP server was answered in the second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos import tool_checks
from tests.chaos.tool_checks import BROKEN, CHECKS, HANGING, OF_MCP, SEARCH, ToolRun, calls
from tests.e2e.made_runs import by_step, fields, lines, metrics, play, proofs, rows_spoilt, write_run

STEPS, QUESTIONS, GROUP = 3, 2, 4
SAMPLES = QUESTIONS * GROUP
FAILING = {
    BROKEN: "RuntimeError: out of order",
    HANGING: "no answer within 1 s",
    OF_MCP: "MCPError: Connection closed",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> ToolRun:
    out = tmp_path_factory.mktemp("tools")
    rows, records = of_searching(play(STEPS * QUESTIONS * 2, GROUP))
    steps = by_step(records, SAMPLES)
    for played in steps.values():
        for record, tool in zip(played, FAILING, strict=False):
            fail(record, tool)
        for call in calls(played[-1]):
            call["tool"] = OF_MCP
    logged = {step: metrics_of(played) for step, played in steps.items()}
    # Of the first group one trajectory is left, which has nothing to be compared with.
    left = [row for i, row in enumerate(rows) if i % SAMPLES >= GROUP]
    write_run(out, left, steps, logged, "run")
    return ToolRun(out, policy_path("rag_r1_mq"), 1, STEPS, SAMPLES)


def of_searching(played: Any) -> tuple[list[dict], list[dict]]:
    """Rows and records of trajectories that searched, in groups of their own."""
    pairs = [pair for pair in zip(played.rows, played.records, strict=True) if any(calls(pair[1]))]
    assert len(pairs) >= STEPS * SAMPLES
    for i, (_, record) in enumerate(pairs):
        record["id"] = f"q{i // GROUP}#{i % GROUP}"
    rows, records = zip(*pairs[: STEPS * SAMPLES], strict=True)
    return list(rows), list(records)


def fail(record: dict[str, Any], tool: str) -> None:
    """The trajectory ended at its first call, which was one of this tool."""
    record["turns"] = record["turns"][:1]
    for call in calls(record):
        call.update(tool=tool, status="failed", documents=None)
    record["failures"] = [{"kind": "tool", "turn": 0, "detail": FAILING[tool]}]
    record["retries"] = len(list(calls(record))) if tool == BROKEN else 0
    record["rewards"] = {"score": None}


def metrics_of(records: list[dict]) -> dict[str, float]:
    """As the sampler logs them."""
    found = {
        "search/samples": float(SAMPLES),
        "search/lost": 0.0,
        "search/left_out": float(GROUP),
        "search/failed_error": 0.0,
        "search/failed_engine": 0.0,
        "search/failed_tool": len(FAILING) / SAMPLES,
        "search/masked": len(FAILING) / SAMPLES,
    }
    for tool in (SEARCH, *FAILING):
        made = [call["status"] for record in records for call in calls(record) if call["tool"] == tool]
        found[f"search/calls/{tool}"] = len(made) / SAMPLES
        found[f"search/failed_calls/{tool}"] = made.count("failed") / SAMPLES
        found[f"search/refused_calls/{tool}"] = 0.0
    return found


ACTOR, METRICS = "actor.jsonl", "run.jsonl"
EVERY = "trajectories/train/*.jsonl"
step2, logged = partial(lines, "trajectories/train/step_000002-1.jsonl"), partial(metrics, METRICS)


def every_call(of: str, **values: Any) -> Callable[[Any], None]:
    """Other values in all calls of a tool."""

    def change(records: list[dict]) -> None:
        for record in records:
            for call in calls(record):
                call.update(values if call["tool"] == of else {})

    return lines(EVERY, change)


def first(change: Callable[[dict], Any]) -> Callable[[Any], None]:
    """Changes the first record of step 2, whose call of the broken tool failed."""
    return step2(lambda records: change(records[0]))


STEPS_DONE, WAYS, MCP, REASONS, COUNTED, ROWS = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "a step is missing": (lines(METRICS, list.pop), STEPS_DONE),
    "a record is lost": (step2(list.pop), STEPS_DONE),
    "a trajectory is lost": (logged(2, **{"search/lost": 1.0}), STEPS_DONE),
    "nothing is left of a step": (logged(3, left_out=float(SAMPLES)), STEPS_DONE),
    "an episode failed by a bug": (logged(1, failed_error=0.125), STEPS_DONE),
    "the engine failed": (logged(1, failed_engine=0.125), STEPS_DONE),
    "the broken tool answered": (step2(lambda r: _answered(r, BROKEN)), WAYS),
    "the hanging tool answered": (step2(lambda r: _answered(r, HANGING)), WAYS),
    "the broken tool was not called": (every_call(BROKEN, tool=HANGING), WAYS),
    "a search failed": (step2(lambda r: next(calls(r[-2])).update(status="failed")), WAYS),
    "the server was not killed": (fields(kills=0), MCP),
    "the server's death cost no call": (every_call(OF_MCP, status="ok"), MCP),
    "the server did not answer again": (every_call(OF_MCP, status="failed"), MCP),
    "a failure is not recorded": (first(lambda record: record["failures"].clear()), REASONS),
    "a failure is recorded twice": (first(lambda r: r["failures"].append(r["failures"][0])), REASONS),
    "a failure is of another kind": (first(lambda r: r["failures"][0].update(kind="error")), REASONS),
    "a failure has another reason": (
        first(lambda r: r["failures"][0].update(detail=FAILING[HANGING])), REASONS,
    ),
    "a failure is recorded without a failed call": (
        step2(lambda r: r[-1].update(failures=[{"kind": "tool", "turn": 0, "detail": ""}])), REASONS,
    ),
    "a masked trajectory has a score": (first(lambda r: r["rewards"].update(score=0.0)), REASONS),
    "a finished trajectory has no score": (step2(lambda r: r[-1]["rewards"].update(score=None)), REASONS),
    "a call was not tried again": (first(lambda r: r.update(retries=0)), REASONS),
    "a call of the hanging tool was tried again": (step2(lambda r: r[1].update(retries=1)), REASONS),
    "a call counts for another tool": (logged(2, **{"search/calls/broken": 0.0}), COUNTED),
    "the calls of the search are not counted": (logged(2, **{"search/calls/search": None}), COUNTED),
    "a failure is not counted": (logged(2, **{"failed_calls/hanging": 0.0}), COUNTED),
    "a failure counts as refused": (logged(2, **{"refused_calls/echo": 0.125}), COUNTED),
    "a tool is not counted": (logged(2, **{"failed_calls/echo": None}), COUNTED),
    "the kind of failure is not counted": (logged(2, failed_tool=0.0), COUNTED),
    "what is masked is not counted": (logged(2, **{"search/masked": 0.0}), COUNTED),
    **rows_spoilt(ROWS),
    "a masked trajectory is trained on": (first(lambda r: r["rewards"].update(score=0.0)), ROWS),
}  # fmt: skip


def _answered(records: list[dict], tool: str) -> None:
    next(call for record in records for call in calls(record) if call["tool"] == tool).update(status="ok")


globals().update(proofs(tool_checks, CHECKS, SPOILINGS))
