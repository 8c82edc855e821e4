"""The checks of a training whose tools fail notice when something in what it has left behind is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos import tool_checks
from tests.chaos.tool_checks import BROKEN, CHECKS, HANGING, OF_MCP, SEARCH, Record, ToolRun, calls
from tests.e2e.mutations import each, fields, lines, metrics, proofs, rows_changed, unpack

STEPS, SAMPLES = 3, 32


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> ToolRun:
    out = unpack("tools", tmp_path_factory.mktemp("tools"))
    return ToolRun(out, policy_path("rag_r1_mq"), 1, STEPS, SAMPLES)


METRICS = "run.jsonl"
every, step1 = (partial(lines, f"trajectories/train/step_{name}.jsonl") for name in ("*", "000001-*"))
logged = partial(metrics, METRICS)


def calls_of(of: str, **values: Any) -> Callable[[Record], None]:
    """Other values in all of a trajectory's calls of a tool."""

    def change(record: Record) -> None:
        for call in calls(record):
            call.update(values if call["tool"] == of else {})

    return change


def one_of(tool: str, change: Callable[[Record], Any]) -> Callable[[Any], None]:
    """Changes the first trajectory of step 1 with a call of this tool."""
    return step1(lambda records: change(next(r for r in records if tool in [c["tool"] for c in calls(r)])))


broken = partial(one_of, BROKEN)


STEPS_DONE, WAYS, MCP, REASONS, COUNTED, ROWS = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "a step is missing": (lines(METRICS, list.pop), STEPS_DONE),
    "a record is lost": (step1(list.pop), STEPS_DONE),
    "a trajectory is lost": (logged(2, lost=1.0), STEPS_DONE),
    "nothing is left of a step": (logged(3, left_out=float(SAMPLES)), STEPS_DONE),
    "an episode failed by a bug": (logged(1, failed_error=0.125), STEPS_DONE),
    "the engine failed": (logged(1, failed_engine=0.125), STEPS_DONE),
    "the broken tool answered": (broken(calls_of(BROKEN, status="ok")), WAYS),
    "the hanging tool answered": (one_of(HANGING, calls_of(HANGING, status="ok")), WAYS),
    "the broken tool was not called": (every(each(calls_of(BROKEN, tool=HANGING))), WAYS),
    "a search failed": (one_of(SEARCH, calls_of(SEARCH, status="failed")), WAYS),
    "the server was not killed": (fields(kills=0), MCP),
    "the server's death cost no call": (every(each(calls_of(OF_MCP, status="ok"))), MCP),
    "the server did not answer again": (every(each(calls_of(OF_MCP, status="failed"))), MCP),
    "a failure is not recorded": (broken(lambda r: r["failures"].clear()), REASONS),
    "a failure is recorded twice": (broken(lambda r: r["failures"].append(r["failures"][0])), REASONS),
    "a failure is of another kind": (broken(lambda r: r["failures"][0].update(kind="error")), REASONS),
    "a failure has another reason": (
        broken(lambda r: r["failures"][0].update(detail="no answer within 1 s")), REASONS,
    ),
    "a failure is recorded without a failed call": (
        one_of(SEARCH, lambda r: r["failures"].append({"kind": "tool", "turn": 0, "detail": ""})), REASONS,
    ),
    "a masked trajectory has a score": (broken(lambda r: r["rewards"].update(score=0.0)), REASONS),
    "a finished trajectory has no score": (
        one_of(SEARCH, lambda r: r["rewards"].update(score=None)), REASONS,
    ),
    "a call was not tried again": (broken(lambda r: r.update(retries=0)), REASONS),
    "a call of the hanging tool was tried again": (one_of(HANGING, lambda r: r.update(retries=1)), REASONS),
    "a call counts for another tool": (logged(2, **{"search/calls/broken": 0.0}), COUNTED),
    "the calls of the search are not counted": (logged(2, **{"search/calls/search": None}), COUNTED),
    "a failure is not counted": (logged(2, **{"failed_calls/broken": 0.0}), COUNTED),
    "a failure counts as refused": (logged(2, **{"refused_calls/echo": 0.125}), COUNTED),
    "a tool is not counted": (logged(2, **{"failed_calls/echo": None}), COUNTED),
    "the kind of failure is not counted": (logged(2, failed_tool=0.0), COUNTED),
    "what is masked is not counted": (logged(2, **{"search/masked": 0.0}), COUNTED),
    **rows_changed(ROWS),
    "a masked trajectory is trained on": (broken(lambda r: r["rewards"].update(score=0.0)), ROWS),
}  # fmt: skip


globals().update(proofs(tool_checks, CHECKS, MUTATIONS))
