"""The checks of a reward of the caller's own notice when something is wrong.

The trajectories here are the demo's traces. One has no answer; one is masked.
"""

from __future__ import annotations

import pytest

from tests.e2e import own_reward_checks
from tests.e2e.made_runs import lines, play, proofs, write_records
from tests.e2e.own_reward_checks import CHECKS, OwnRewardRun

WEIGHT, LIMIT = 0.1, 2


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> OwnRewardRun:
    out = tmp_path_factory.mktemp("own_reward")
    records = play(8).records
    for i, record in enumerate(records):
        searches = sum(len(turn["calls"]) for turn in record["turns"])
        answer, em = (None if i == 0 else "Ulm"), float(i % 2)
        brevity = float(answer is not None and searches <= LIMIT)
        rewards = {"em": em, "brevity": brevity, "score": em + WEIGHT * brevity}
        record |= {"question": "Who?", "answer": answer, "rewards": rewards}
    records[1]["rewards"] = {"em": None, "brevity": None, "score": None}
    write_records(out, records, 1)
    return OwnRewardRun(out, WEIGHT, LIMIT)


def every(**rewards: float | None):
    """Gives every trajectory these rewards."""

    def change(records: list[dict]) -> None:
        for record in records:
            record["rewards"].update(rewards)

    return change


def one(**rewards: float | None):
    return lambda records: records[2]["rewards"].update(rewards)


def without_score(records: list[dict]) -> None:
    for record in records:
        record["rewards"]["score"] = record["rewards"]["em"]


STEP = "trajectories/train/step_000001-1.jsonl"
PRESENT, COUNTED = CHECKS
SPOILINGS = {
    "there are no records": (list.clear, PRESENT),
    "one trajectory lacks the reward": (lambda r: r[2]["rewards"].pop("brevity"), PRESENT),
    "no trajectory is judged": (every(score=None), COUNTED),
    "the reward has no value": (one(brevity=None), COUNTED),
    "the reward is 0 for a short search": (one(brevity=0.0, score=0.0), COUNTED),
    "the reward is always 1": (every(brevity=1.0), COUNTED),
    "the reward is not part of the score": (without_score, COUNTED),
    "a search more than was made": (
        lambda r: r[2]["turns"][0]["calls"].extend(r[2]["turns"][0]["calls"] * LIMIT),
        COUNTED,
    ),
}


globals().update(
    proofs(
        own_reward_checks,
        CHECKS,
        {what: (lines(STEP, change), check) for what, (change, check) in SPOILINGS.items()},
    )
)
