"""The checks of trajectories with several rows notice when something is wrong.

The recorded run is one of a memory, whose backtracks rewrite the context. Of its trajectories fewer than half
do, so that one check passes only after more of them are recorded as if they had (`most_rewrite`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from rag_r1.demo.policy import policy_path
from tests.e2e import rewriting_checks
from tests.e2e.mutations import each, lines, metrics, proofs, searched, unmask, unpack
from tests.e2e.rewriting_checks import CHECKS, RewritingRun, sessions

STEPS, QUESTIONS, GROUP, UPDATES, TURNS, VALIDATED = 2, 4, 8, 2, 6, 12


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RewritingRun:
    out, policy = unpack("memory_grpo", tmp_path_factory.mktemp("rewriting")), policy_path("rag_r1_sq")
    return RewritingRun(out, policy, STEPS, QUESTIONS, GROUP, UPDATES, TURNS, VALIDATED)


METRICS, EVERY_STEP = "metrics.jsonl", "trajectories/train/*.jsonl"
step2, validation = (partial(lines, f"trajectories/{part}/step_000002-*.jsonl") for part in ("train", "val"))
Updates = list[list[dict[str, Any]]]


updates = partial(lines, "updates.jsonl")
logged = partial(metrics, METRICS)


def most_rewrite(run: RewritingRun) -> None:
    """The last turn of each trajectory is in a row of its own."""
    lines(EVERY_STEP, each(lambda record: record["turns"][-1].update(row=len(record["turns"]) - 1)))(run)


def rows(number: int):
    """Every trajectory has this number of rows."""
    turns = [{"text": f"t{row}", "row": row} for row in range(number)]
    return each(lambda record: record.update(turns=turns))


def split(cut: Updates) -> tuple[list[dict], list[dict]]:
    """The first update that has a trajectory of several rows, and these."""
    return next(
        (update, rows)
        for update in cut
        for (uid, _), rows in sessions(update).items()
        if len(rows) > 1 and not uid.startswith("pad")
    )


def rows_apart(cut: Updates) -> None:
    """A row of a trajectory is in the next update; the sizes stay."""
    update, (_, row, *_) = split(cut)
    update[update.index(row)] = dict(update[-1])
    cut[0 if update is cut[1] else 1].append(row)


def in_two_updates(cut: Updates) -> None:
    """A trajectory of the first update takes the place of one of the second."""
    cut[1][0] = dict(cut[0][0])


def in_no_update(cut: Updates) -> None:
    row = cut[0][0]
    cut[0][:] = [r for r in cut[0] if (r["uid"], r["session_id"]) != (row["uid"], row["session_id"])]


def own_sessions(cut: Updates) -> None:
    """Every row is a trajectory of its own."""
    for i, row in enumerate(split(cut)[0]):
        row["session_id"] = i


def own_advantage(cut: Updates) -> None:
    row = split(cut)[1][1]
    row["advantages"] = [0.5] * len(row["advantages"])


def no_advantages(row: dict[str, Any]) -> None:
    row["advantages"] = [0.0] * len(row["advantages"])


def other_token(cut: Updates) -> None:
    cut[0][0]["responses"][1] += 1


def unmask_observation(cut: Updates) -> None:
    row = searched(cut[0])
    unmask(row)
    row["loss_mask"][-len(row["responses"]) :] = row["response_mask"]


def padding(cut: Updates) -> dict[str, Any]:
    return next(row for rows in cut for row in rows if row["uid"].startswith("pad"))


def without_padding(cut: Updates) -> None:
    """An update is shorter than the others."""
    next(rows for rows in cut if padding(cut) in rows).remove(padding(cut))


def another_row(records: list[dict]) -> None:
    next(turn for record in records for turn in record["turns"] if turn["row"] == 1).update(row=0)


def rewritten(cut: Updates) -> dict[str, Any]:
    """The row after a rewriting."""
    return max(split(cut)[1], key=lambda row: len(row["prompts"]))


def not_rewritten(row: dict[str, Any]) -> None:
    row["prompts"] = row["prompts"][:3]


DIFFERENT, UPDATED, TOGETHER, WRITTEN, BEGINS, AGREE, COUNT = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "trajectories have one row each": (lines(EVERY_STEP, rows(1)), DIFFERENT, most_rewrite),
    "all trajectories have three rows": (lines(EVERY_STEP, rows(3)), DIFFERENT, most_rewrite),
    "a trajectory has more rows than turns": (step2(lambda r: rows(8)(r[:1])), DIFFERENT, most_rewrite),
    "an update is missing": (updates(list.pop), UPDATED),
    "an update too many": (updates(lambda cut: cut.append(cut[0])), UPDATED),
    "an update lacks a trajectory": (updates(in_no_update), UPDATED),
    "rows count as trajectories": (updates(own_sessions), UPDATED),
    "mini-batches are of different sizes": (updates(without_padding), UPDATED),
    "rows of a trajectory are in two updates": (updates(rows_apart), TOGETHER),
    "a trajectory is in two updates": (updates(in_two_updates), TOGETHER),
    "a trajectory is in no update": (updates(in_no_update), TOGETHER),
    "a row has an advantage of its own": (updates(own_advantage), TOGETHER),
    "no trajectory has an advantage": (updates(each(each(no_advantages))), TOGETHER),
    "a row is not trained on": (updates(lambda cut: cut[0].pop(1)), WRITTEN),
    "a row is trained on twice": (updates(lambda cut: cut[0].append(cut[0][1])), WRITTEN),
    "the actor gets another token": (updates(other_token), WRITTEN),
    "an observation is trained on": (updates(unmask_observation), WRITTEN),
    "the loss has another mask": (updates(lambda cut: cut[0][0]["loss_mask"].__setitem__(-1, 0)), WRITTEN),
    "padding is trained on": (updates(lambda cut: unmask(padding(cut))), WRITTEN),
    "a record is lost": (step2(list.pop), WRITTEN),
    "a turn is recorded in another row": (step2(another_row), WRITTEN),
    "no context is rewritten": (updates(each(each(not_rewritten))), BEGINS),
    "a rewritten context keeps more than the thought": (
        updates(lambda cut: rewritten(cut)["prompts"].extend([7, 7])), BEGINS,
    ),
    "a rewritten context begins with another prompt": (
        updates(lambda cut: rewritten(cut)["prompts"].insert(0, 7)), BEGINS,
    ),
    "engine and actor disagree": (logged(2, probs_diff_max=0.1), AGREE),
    "the probabilities were not compared": (logged(2, probs_diff_max=None), AGREE),
    "nothing is learned": (
        lines(METRICS, each(lambda entry: entry["data"].update({"actor/grad_norm": 0.0}))), AGREE,
    ),
    "a step is missing": (lines(METRICS, list.pop), AGREE),
    "metrics count rows": (logged(2, **{"search/samples": 18.0}), COUNT),
    "a metric is a mean over rows": (logged(2, **{"search/em": 0.9}), COUNT),
    "the number of rows is another": (logged(2, **{"sessions/rows": 1.0}), COUNT),
    "a trajectory is left out": (logged(2, left_out=1.0), COUNT),
    "a trajectory is lost": (logged(2, lost=1.0), COUNT),
    "a trajectory is masked": (logged(2, **{"search/masked": 1 / 32}), COUNT),
    "no step is logged": (lines(METRICS, list.clear), COUNT),
    "a record is that of another step": (step2(lambda r: r[0].update(step=1)), COUNT),
    "a validated trajectory is recorded twice": (validation(lambda r: r.append(r[0])), COUNT),
    "a validated trajectory is lost": (validation(list.pop), COUNT),
}  # fmt: skip


globals().update(proofs(rewriting_checks, CHECKS[1:], MUTATIONS))
