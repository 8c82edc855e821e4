"""The checks of filtered groups and of merged adapters notice when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from rag_r1.demo.policy import policy_path
from tests.e2e import dapo_and_lora_checks
from tests.e2e.dapo_and_lora_checks import DAPO_CHECKS, LORA_CHECKS, GroupedRun
from tests.e2e.left_behind import question
from tests.e2e.mutations import each, lines, metrics, named, proofs, rows_changed, unpack

STEPS, QUESTIONS, GROUP = 3, 6, 4
CHECKS = tuple(dict.fromkeys([*DAPO_CHECKS, *LORA_CHECKS]))
METRICS = "metrics.jsonl"
actor, step2 = partial(lines, "actor.jsonl"), partial(lines, "trajectories/train/step_000002-*.jsonl")
logged = partial(metrics, METRICS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> GroupedRun:
    out = unpack("dapo", tmp_path_factory.mktemp("groups"))
    return GroupedRun(out, policy_path("rag_r1_mq"), STEPS, QUESTIONS, GROUP)


def give_all_the_same_reward(records: list[dict]) -> None:
    """All of one group, which was kept and trained on."""
    for record in records:
        if question(record) == "train-2832":
            record["rewards"]["em"] = 1.0


def never(name: str) -> Callable[[GroupedRun], None]:
    """No step says that groups were filtered, or refilled."""
    return lines(METRICS, each(lambda entry: entry["data"].update({f"search/{name}_groups": 0.0})))


LOGS, COUNTS, HAPPENED, FULL, AGREE = CHECKS
#: What goes wrong, and the check that must notice it.
MUTATIONS = {
    "a step is missing": (lines(METRICS, list.pop), LOGS),
    "a filtered group is not counted": (logged(2, filtered_groups=2.0), COUNTS),
    "a group with different rewards is filtered": (logged(2, filtered_groups=4.0), COUNTS),
    "a group with one reward is not filtered": (step2(give_all_the_same_reward), COUNTS),
    "a refilled group is not counted": (logged(2, refilled_groups=5.0), COUNTS),
    "a trajectory of a dropped group is not counted": (logged(2, **{"search/samples": 47.0}), COUNTS),
    "a record is lost": (step2(list.pop), COUNTS),
    "a group is not whole": (step2(lambda r: named(r, "train-449#0").update(id="train-2832#9")), COUNTS),
    "a batch is short of a group": (logged(2, short_groups=1.0), COUNTS),
    "a group is lost to failures": (logged(2, unusable_groups=1.0), COUNTS),
    "filtered groups are not logged": (logged(1, filtered_groups=None), COUNTS),
    "nothing is logged": (lines(METRICS, list.clear), COUNTS),
    "no group was filtered": (never("filtered"), HAPPENED),
    "no group was refilled": (never("refilled"), HAPPENED),
    **rows_changed(FULL),
    "a group with one reward is kept": (step2(give_all_the_same_reward), FULL),
    "the engine has other weights than the actor": (logged(2, ppo_kl=0.015), AGREE),
    "one ratio in thirty is clipped": (logged(2, pg_clipfrac=0.03), AGREE),
    "nothing is learned": (logged(2, grad_norm=0.0), AGREE),
    "a step made no update": (logged(2, ppo_kl=None), AGREE),
    "no step is logged": (lines(METRICS, list.clear), AGREE),
}


globals().update(proofs(dapo_and_lora_checks, CHECKS, MUTATIONS))
