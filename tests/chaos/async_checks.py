"""What an asynchronous training must have left behind: each check raises AssertionError, or KeyError for a
metric that is not there.

Read are veRL's metrics of each step, the trajectories, and what the actor was trained on (`actor.jsonl`). How
the proxy held back the first search is handed over.
tests/chaos/test_async_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from left_behind import json_lines, step_metrics, texts_of_records, texts_of_rows
from transformers import AutoTokenizer

from rag_r1.records import records_by_step


@dataclass(frozen=True)
class AsyncRun:
    """The finished training."""

    out: Path
    policy: Path  # whose tokenizer it used
    answers: Mapping[str, int]  # those of the proxy: `held` and `given up` are of the first search
    steps: int
    samples: int  # trajectories of a step

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        return step_metrics(self.out / "run.jsonl")


def every_step_has_all_of_its_samples(run: AsyncRun) -> None:
    assert sorted(run.metrics) == list(range(1, run.steps + 1))
    for data in run.metrics.values():
        assert data["search/lost"] == data["search/left_out"] == 0
        assert data["search/failed_engine"] == data["search/failed_error"] == 0


def every_token_has_the_probability_that_the_actor_gives_to_it(run: AsyncRun) -> None:
    assert run.metrics
    for data in run.metrics.values():
        assert data["training/rollout_probs_diff_valid"] == 1
        assert data["training/rollout_probs_diff_max"] < 1e-3


def trajectories_went_through_weight_updates_and_their_versions_say_so(run: AsyncRun) -> None:
    assert (run.answers["held"], run.answers["given up"]) == (1, 0)
    assert max(data["training/off_policy/trajectory_spans/max"] for data in run.metrics.values()) >= 2
    for data in run.metrics.values():
        assert data["training/off_policy/trajectory_spans/min"] >= 1
        assert data["training/off_policy/trajectory_staleness/min"] >= 0


def the_actor_is_trained_on_what_the_policy_wrote_and_on_no_row_twice(run: AsyncRun) -> None:
    records = records_by_step(run.out / "trajectories" / "train")
    written = texts_of_records(record for played in records.values() for record in played)
    rows = json_lines(run.out / "actor.jsonl")
    trained_on = texts_of_rows(rows, AutoTokenizer.from_pretrained(run.policy))
    assert sum(trained_on.values()) == run.steps * run.samples
    assert not trained_on - written


CHECKS = (
    every_step_has_all_of_its_samples,
    every_token_has_the_probability_that_the_actor_gives_to_it,
    trajectories_went_through_weight_updates_and_their_versions_say_so,
    the_actor_is_trained_on_what_the_policy_wrote_and_on_no_row_twice,
)
