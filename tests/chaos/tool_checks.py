"""What a training whose tools fail must have left behind: each check raises AssertionError, or KeyError for a
metric that is not there.

Beside the search the policy calls a tool that always raises, one that never answers, and one of an MCP server
that is killed in the middle of its first call. Read are the metrics, the trajectories, and what the actor was
trained on (`actor.jsonl`). tests/chaos/test_tool_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.chaos.fault_checks import usable
from tests.e2e.left_behind import FinishedRun, generated, json_lines, texts_of_records, texts_of_rows

SEARCH, BROKEN, HANGING, OF_MCP = "search", "broken", "hanging", "echo"
#: What a record says about a failed call of each tool.
DETAILS = {
    BROKEN: "RuntimeError: out of order",
    HANGING: "no answer within 1 s",
    OF_MCP: "Connection closed",
}
Record = dict[str, Any]


@dataclass(frozen=True)
class ToolRun(FinishedRun):
    """The finished training."""

    kills: int  # of the MCP server
    steps: int
    samples: int  # trajectories of a step
    LOG = "run.jsonl"

    @property
    def records(self) -> list[Record]:
        return [record for played in self.trained.values() for record in played]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What the actor was trained on, without the rows that pad a batch."""
        return [row for row in json_lines(self.out / "actor.jsonl") if generated(row)]

    def statuses(self, tool: str) -> set[str]:
        return {call["status"] for record in self.records for call in calls(record) if call["tool"] == tool}


def calls(record: Record) -> Iterator[dict[str, Any]]:
    return (call for turn in record["turns"] for call in turn["calls"])


def every_step_is_done_with_all_of_its_samples(run: ToolRun) -> None:
    assert sorted(run.metrics) == sorted(run.trained) == list(range(1, run.steps + 1))
    for step, data in run.metrics.items():
        assert data["search/samples"] == len(run.trained[step]) == run.samples
        assert data["search/lost"] == 0 and data["search/left_out"] < run.samples
        assert data["search/failed_error"] == data["search/failed_engine"] == 0


def every_tool_failed_in_its_own_way_and_the_search_did_not(run: ToolRun) -> None:
    assert run.statuses(BROKEN) == run.statuses(HANGING) == {"failed"}
    assert run.statuses(SEARCH) == {"ok"}


def the_mcp_server_was_killed_during_a_call_and_answered_again(run: ToolRun) -> None:
    assert run.kills == 1
    assert run.statuses(OF_MCP) == {"failed", "ok"}


def a_failure_is_recorded_once_with_its_reason_and_masks_its_trajectory(run: ToolRun) -> None:
    for record in run.records:
        failed = [call["tool"] for call in calls(record) if call["status"] == "failed"]
        notes = [note for note in record["failures"] if note["kind"] != "budget"]
        assert [note["kind"] for note in notes] == ["tool"] * bool(failed)
        assert all(re.search(DETAILS[failed[0]], note["detail"]) for note in notes)
        assert (record["rewards"]["score"] is None) == bool(failed)
        # The limits of the other tools allow no retry.
        assert record["retries"] == failed.count(BROKEN)


def the_metrics_count_the_calls_and_the_failures_of_each_tool_by_its_name(run: ToolRun) -> None:
    for step, records in run.trained.items():
        data = run.metrics[step]
        for tool in (SEARCH, BROKEN, HANGING, OF_MCP):
            statuses = [
                call["status"] for record in records for call in calls(record) if call["tool"] == tool
            ]
            assert data[f"search/calls/{tool}"] == pytest.approx(len(statuses) / len(records))
            assert data[f"search/failed_calls/{tool}"] == pytest.approx(
                statuses.count("failed") / len(records)
            )
            assert data[f"search/refused_calls/{tool}"] == 0
        masked = sum(record["rewards"]["score"] is None for record in records) / len(records)
        assert data["search/masked"] == data["search/failed_tool"] == pytest.approx(masked)


def the_actor_is_trained_on_no_masked_trajectory_and_on_each_other_one_once(run: ToolRun) -> None:
    trained_on = texts_of_rows(run.rows, run.tokenizer)
    assert trained_on == texts_of_records(usable(run.trained))


CHECKS = (
    every_step_is_done_with_all_of_its_samples,
    every_tool_failed_in_its_own_way_and_the_search_did_not,
    the_mcp_server_was_killed_during_a_call_and_answered_again,
    a_failure_is_recorded_once_with_its_reason_and_masks_its_trajectory,
    the_metrics_count_the_calls_and_the_failures_of_each_tool_by_its_name,
    the_actor_is_trained_on_no_masked_trajectory_and_on_each_other_one_once,
)
