"""The checks of filtered groups and of merged adapters notice when something is wrong.

The run here is made by hand, of the demo's traces: two steps of two groups of four. In step 2 two groups had
one reward each and were refilled by three; of the three left, one was not needed.
"""

from __future__ import annotations

from functools import partial

import pytest

from rag_r1.demo.policy import policy_path
from tests.e2e import dapo_and_lora_checks
from tests.e2e.dapo_and_lora_checks import DAPO_CHECKS, LORA_CHECKS, GroupedRun
from tests.e2e.made_runs import by_step, lines, metrics, play, proofs, rows_spoilt, write_lines, write_run

STEPS, QUESTIONS, GROUP = 2, 2, 4
CHECKS = tuple(dict.fromkeys([*DAPO_CHECKS, *LORA_CHECKS]))
#: Numbers of groups, as they were played.
FIRST, CONSTANT, VARIED = (0, 1), (2, 3), (4, 5, 6)
GROUPS = {1: FIRST, 2: (*CONSTANT, *VARIED)}
LOGGED = {
    "search/filtered_groups": 0.0,
    "search/refilled_groups": 0.0,
    "search/short_groups": 0.0,
    "search/unusable_groups": 0.0,
    "search/samples": 8.0,
    "actor/ppo_kl": -1e-7,
    "actor/pg_clipfrac": 0.0,
    "actor/grad_norm": 0.1,
}
REFILLED = {"search/filtered_groups": 2.0, "search/refilled_groups": 3.0, "search/samples": 20.0}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> GroupedRun:
    out = tmp_path_factory.mktemp("groups")
    numbers = (*FIRST, *CONSTANT, *VARIED)
    played = play(len(numbers), GROUP)
    rows = [*by_step(played.rows, GROUP).values()]
    records = [*by_step(played.records, GROUP).values()]
    for n in numbers:
        for i, record in enumerate(records[n]):
            record["rewards"] = {"em": 0.0 if n in CONSTANT else float(i == 0)}
    steps = {step: [r for n in groups for r in records[n]] for step, groups in GROUPS.items()}
    trained = [row for n in (*FIRST, *VARIED[:2]) for row in rows[n]]
    write_run(out, trained, steps, {0: {"val": 1.0}, 1: LOGGED, 2: {**LOGGED, **REFILLED}})
    write_lines(out / "constant.jsonl", rows[CONSTANT[0]])
    return GroupedRun(out, policy_path("rag_r1_mq"), STEPS, QUESTIONS, GROUP)


ACTOR, METRICS, STEP2 = "actor.jsonl", "metrics.jsonl", "trajectories/train/step_000002-1.jsonl"


logged = partial(metrics, METRICS)


def constant_group_is_kept(run: GroupedRun) -> None:
    """It is trained on in the place of another, with counts that are right."""
    kept = (run.out / "constant.jsonl").read_text().splitlines()
    text = (run.out / ACTOR).read_text().splitlines()
    (run.out / ACTOR).write_text("".join(line + "\n" for line in text[:-GROUP] + kept))


def give_all_the_same_reward(records: list[dict]) -> None:
    for record in records[-GROUP:]:
        record["rewards"]["em"] = 1.0


LOGS, COUNTS, HAPPENED, FULL, AGREE = CHECKS
#: What goes wrong, and the check that must notice it.
SPOILINGS = {
    "a step is missing": (lines(METRICS, list.pop), LOGS),
    "a filtered group is not counted": (logged(2, filtered_groups=1.0), COUNTS),
    "a group with different rewards is filtered": (logged(2, filtered_groups=3.0), COUNTS),
    "a group with one reward is not filtered": (lines(STEP2, give_all_the_same_reward), COUNTS),
    "a refilled group is not counted": (logged(2, refilled_groups=2.0), COUNTS),
    "a trajectory of a dropped group is not counted": (logged(2, samples=19.0), COUNTS),
    "a record is lost": (lines(STEP2, list.pop), COUNTS),
    "a group is not whole": (lines(STEP2, lambda r: r[0].update(id="q3#9")), COUNTS),
    "a batch is short of a group": (logged(2, short_groups=1.0), COUNTS),
    "a group is lost to failures": (logged(2, unusable_groups=1.0), COUNTS),
    "filtered groups are not logged": (logged(1, filtered_groups=None), COUNTS),
    "nothing is logged": (lines(METRICS, list.clear), COUNTS),
    "no group was filtered": (logged(2, filtered_groups=0.0), HAPPENED),
    "no group was refilled": (logged(2, refilled_groups=0.0), HAPPENED),
    **rows_spoilt(FULL),
    "a group with one reward is kept": (constant_group_is_kept, FULL),
    "the engine has other weights than the actor": (logged(2, ppo_kl=0.015), AGREE),
    "one ratio in thirty is clipped": (logged(2, pg_clipfrac=0.03), AGREE),
    "nothing is learned": (logged(2, grad_norm=0.0), AGREE),
    "a step made no update": (logged(2, ppo_kl=None), AGREE),
    "no step is logged": (lines(METRICS, list.clear), AGREE),
}


globals().update(proofs(dapo_and_lora_checks, CHECKS, SPOILINGS))
