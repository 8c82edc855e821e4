"""The checks of trainings with a memory notice when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rag_r1.demo.policy import policy_path
from tests.e2e import memory_checks
from tests.e2e.memory_checks import CHECKS, MemoryRun
from tests.e2e.mutations import each, fields, lines, proofs, unpack

STEPS, UPDATES, TURNS, VALIDATED = 2, 2, 6, 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> MemoryRun:
    out, policy = unpack("memory_grpo", tmp_path_factory.mktemp("grpo")), policy_path("rag_r1_sq")
    return MemoryRun(out, policy, STEPS, 4, 8, UPDATES, TURNS, VALIDATED, removing=("backtrack",))


def by(estimator: str) -> Callable[[MemoryRun], MemoryRun]:
    """The run of REINFORCE++, whose returns are GAE's as well."""

    def other(run: MemoryRun) -> MemoryRun:
        out = unpack("memory_reinforce_plus_plus", run.out / "other")
        return replace(run, out=out, questions=8, group=4, estimator=estimator)

    return other


Updates = list[list[dict[str, Any]]]


updates, records = partial(lines, "updates.jsonl"), partial(lines, "trajectories/train/*.jsonl")


def without_backtracks(record: dict[str, Any]) -> None:
    for turn in record["turns"]:
        turn["action"] = "think" if turn["action"] == "backtrack" else turn["action"]


def shorter_contexts(rows: list[dict[str, Any]]) -> None:
    """Each row after a rewriting has lost a token of its context."""
    for row in rows:
        if len(row["prompts"]) > min(len(other["prompts"]) for other in rows if other["uid"] == row["uid"]):
            row["prompts"].pop()


def one_row_each(cut: Updates) -> None:
    """Only the first row of each trajectory is left."""
    for rows in cut:
        names: set[tuple] = set()
        rows[:] = [r for r in rows if not ((k := (r["uid"], r["session_id"])) in names or names.add(k))]


def scaled(name: str, factor: float) -> Callable[[Updates], None]:
    """A column of one row that has a value in it."""

    def change(cut: Updates) -> None:
        row = next(row for rows in cut for row in rows if any(row[name]))
        row[name] = [factor * value for value in row[name]]

    return change


def no_log_probs(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["rollout_log_probs"] = row["old_log_probs"] = [0.0] * len(row["responses"])


def nothing_removed(record: dict[str, Any]) -> None:
    for turn in record["turns"]:
        turn["row"] = 0


MADE, COUNTED, AGREE, STAYS = CHECKS
MUTATIONS = {
    "no backtrack": (records(each(without_backtracks)), MADE),
    "no summary where there must be some": (fields(removing=("summary", "backtrack")), MADE),
    "a rewriting made no row": (updates(one_row_each), MADE),
    "all answers are wrong": (records(each(lambda record: record["rewards"].update(em=0.0))), COUNTED),
    "a row has another advantage": (updates(scaled("advantages", 2.0)), COUNTED),
    "half a return, by GAE": (updates(scaled("returns", 0.5)), COUNTED, by("gae")),
    "a return more, by REINFORCE++": (
        updates(scaled("returns", 2.0)), COUNTED, by("reinforce_plus_plus"),
    ),
    "an advantage that counts rows, by REINFORCE++": (
        updates(scaled("advantages", 1.5)), COUNTED, by("reinforce_plus_plus"),
    ),
    "another log-prob": (updates(scaled("old_log_probs", 1.01)), AGREE),
    "log-probs are zeros": (updates(each(no_log_probs)), AGREE),
    "a context has lost a token": (updates(each(shorter_contexts)), STAYS),
    "no context is rewritten": (records(each(nothing_removed)), STAYS),
}  # fmt: skip


globals().update(proofs(memory_checks, CHECKS, MUTATIONS))
