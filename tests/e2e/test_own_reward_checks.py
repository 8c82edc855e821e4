"""The checks of a reward of the caller's own notice when something is wrong."""

from __future__ import annotations

import pytest

from tests.e2e import own_reward_checks
from tests.e2e.mutations import each, lines, proofs, unpack
from tests.e2e.own_reward_checks import CHECKS, OwnRewardRun

WEIGHT, LIMIT = 0.1, 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> OwnRewardRun:
    return OwnRewardRun(unpack("dapo", tmp_path_factory.mktemp("own_reward")), WEIGHT, LIMIT)


def rewards(**values: float | None):
    return lambda record: record["rewards"].update(values)


def without_score(record: dict) -> None:
    record["rewards"]["score"] = record["rewards"]["em"]


def searched_more(records: list[dict]) -> None:
    turn = next(turn for record in records for turn in record["turns"] if turn["calls"])
    turn["calls"] *= 1 + LIMIT


PRESENT, COUNTED = CHECKS
CHANGES = {
    "there are no records": (list.clear, PRESENT),
    "one trajectory lacks the reward": (lambda r: r[2]["rewards"].pop("brevity"), PRESENT),
    "no trajectory is judged": (each(rewards(score=None)), COUNTED),
    "the reward has no value": (lambda r: r[2]["rewards"].update(brevity=None), COUNTED),
    "the reward is 0 for a short search": (lambda r: r[2]["rewards"].update(brevity=0.0, score=0.0), COUNTED),
    "the reward is always 1": (each(rewards(brevity=1.0)), COUNTED),
    "the reward is not part of the score": (each(without_score), COUNTED),
    "searches more than were made": (searched_more, COUNTED),
}
EVERY = "trajectories/train/*.jsonl"
MUTATIONS = {name: (lines(EVERY, change), check) for name, (change, check) in CHANGES.items()}


globals().update(proofs(own_reward_checks, CHECKS, MUTATIONS))
