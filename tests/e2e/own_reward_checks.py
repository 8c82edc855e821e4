"""What a training with a reward of the caller's own must have left behind: each check raises AssertionError.

The reward is `brevity`, beside `em`: 1 for an answer after at most `limit` searches, and else 0.
tests/e2e/test_own_reward_checks.py spoils the trajectories and sees that a check notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from rag_r1.agent.records import read_records, trajectory_of


@dataclass(frozen=True)
class OwnRewardRun:
    """The finished training."""

    out: Path
    weight: float  # of `brevity`; that of `em` is 1
    limit: int

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return list(read_records(self.out / "trajectories" / "train"))

    @cached_property
    def judged(self) -> list[dict[str, Any]]:
        """Those that are not masked."""
        return [record for record in self.records if record["rewards"]["score"] is not None]


def every_trajectory_has_the_reward(run: OwnRewardRun) -> None:
    assert run.records and all("brevity" in record["rewards"] for record in run.records)


def the_reward_is_what_the_function_returns_and_part_of_the_score(run: OwnRewardRun) -> None:
    assert run.judged
    for record in run.judged:
        rewards, played = record["rewards"], trajectory_of(record)
        assert rewards["brevity"] == float(played.answer is not None and played.n_searches <= run.limit)
        assert rewards["score"] == pytest.approx(rewards["em"] + run.weight * rewards["brevity"])


CHECKS = (every_trajectory_has_the_reward, the_reward_is_what_the_function_returns_and_part_of_the_score)
