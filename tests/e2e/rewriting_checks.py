"""What a training whose trajectories rewrite their context must have left behind: each check raises
AssertionError, or KeyError for a metric that is not there.

Read are the rows of each update of the actor (`updates.jsonl`, see recording_updates.py), the trajectories,
and veRL's metrics. tests/e2e/test_rewriting_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.e2e.left_behind import FinishedRun, json_lines, texts_of_rows


@dataclass(frozen=True)
class RewritingRun(FinishedRun):
    """The finished training."""

    steps: int
    questions: int
    group: int
    updates_of_a_step: int
    turns: int  # at most, before the last one, which can only answer
    validated: int  # trajectories of one validation; there is one before training and one after

    @property
    def trajectories(self) -> int:
        """Of one update."""
        return self.questions // self.updates_of_a_step * self.group

    @cached_property
    def updates(self) -> list[list[dict[str, Any]]]:
        """The rows of each update, without padding."""
        return [[row for row in rows if not row["uid"].startswith("pad")] for rows in self.cut]

    @cached_property
    def cut(self) -> list[list[dict[str, Any]]]:
        """The rows of each update."""
        return json_lines(self.out / "updates.jsonl")

    def records(self, split: str) -> list[dict[str, Any]]:
        """The trajectories."""
        files = sorted((self.out / "trajectories" / split).glob("step_*.jsonl"))
        return [record for path in files for record in json_lines(path)]


def trajectories_have_different_numbers_of_rows_and_most_have_more_than_one(run: RewritingRun) -> None:
    counts = Counter(len(rows_of(record)) for record in run.records("train"))
    assert set(counts) <= set(range(1, run.turns + 2))
    assert sum(n for rows, n in counts.items() if rows > 1) > run.steps * run.questions * run.group // 2
    assert len(counts) > 1


def a_step_has_the_updates_of_one_row_for_each_trajectory(run: RewritingRun) -> None:
    assert len(run.updates) == run.steps * run.updates_of_a_step
    for rows in run.updates:
        assert len(sessions(rows)) == run.trajectories
    for step in range(run.steps):
        parts = run.cut[step * run.updates_of_a_step : (step + 1) * run.updates_of_a_step]
        assert len({len(rows) for rows in parts}) == 1, "mini-batches are padded to one size"


def all_rows_of_a_trajectory_are_in_one_update_with_one_advantage(run: RewritingRun) -> None:
    updates = Counter(name for rows in run.updates for name in sessions(rows))
    assert set(updates.values()) == {1} and len(updates) == run.steps * run.questions * run.group
    for rows in run.updates:
        for of_session in sessions(rows).values():
            values = {
                round(value, 6)
                for row in of_session
                for value, bit in zip(row["advantages"], row["response_mask"], strict=True)
                if bit
            }
            assert len(values) == 1
    advantages = [v for rows in run.updates for row in rows for v in row["advantages"]]
    assert any(advantages), "some group had different rewards"


def what_the_policy_wrote_is_trained_on_once_and_nothing_else_is(run: RewritingRun) -> None:
    written = Counter(text for record in run.records("train") for text in rows_of(record))
    rows = [row for update in run.updates for row in update]
    for row in rows:
        assert row["loss_mask"][-len(row["responses"]) :] == row["response_mask"]
    assert texts_of_rows(rows, run.tokenizer) == written
    padding = [row for rows in run.cut for row in rows if row["uid"].startswith("pad")]
    assert not any(bit for row in padding for bit in row["response_mask"])


def a_row_after_a_rewriting_begins_with_the_prompt_and_the_thought(run: RewritingRun) -> None:
    rewritten = 0
    for rows in run.updates:
        for of_session in sessions(rows).values():
            first = min((row["prompts"] for row in of_session), key=len)
            for row in of_session:
                if len(row["prompts"]) > len(first):
                    assert row["prompts"][: len(first)] == first
                    thought = run.tokenizer.decode(row["prompts"][len(first) :])
                    assert thought.rstrip().endswith("</think>")
                    rewritten += 1
    assert rewritten > 0


def vllm_and_the_actor_agree_on_every_tokens_probability_in_its_row(run: RewritingRun) -> None:
    assert sorted(run.metrics) == list(range(1, run.steps + 1))
    for data in run.metrics.values():
        assert data["training/rollout_probs_diff_max"] < 1e-3
    # A step whose rewards are all equal has no gradient.
    assert max(data["actor/grad_norm"] for data in run.metrics.values()) > 0


def metrics_and_validation_count_trajectories(run: RewritingRun) -> None:
    by_step = defaultdict(list)
    for record in run.records("train"):
        by_step[record["step"]].append(record)
    assert run.metrics
    for step, data in run.metrics.items():
        assert data["search/samples"] == run.questions * run.group == len(by_step[step])
        right = sum(record["rewards"]["em"] for record in by_step[step])
        assert data["search/em"] == pytest.approx(right / len(by_step[step]))
        assert data["search/left_out"] == data["search/lost"] == data["search/masked"] == 0
        assert data["sessions/rows"] == pytest.approx(
            sum(len(rows_of(record)) for record in by_step[step]) / len(by_step[step])
        )
    assert len(run.records("val")) == 2 * run.validated, "one record for each question, before and after"


def sessions(rows: list[dict[str, Any]]) -> dict[tuple, list[dict[str, Any]]]:
    """The rows by trajectory."""
    by_session = defaultdict(list)
    for row in rows:
        by_session[row["uid"], row["session_id"]].append(row)
    return by_session


def rows_of(record: dict[str, Any]) -> list[str]:
    """What the policy wrote in each row of a trajectory."""
    texts: dict[int, str] = defaultdict(str)
    for turn in record["turns"]:
        texts[turn["row"]] += turn["text"]
    return [text for _, text in sorted(texts.items()) if text]


CHECKS = (
    trajectories_have_different_numbers_of_rows_and_most_have_more_than_one,
    a_step_has_the_updates_of_one_row_for_each_trajectory,
    all_rows_of_a_trajectory_are_in_one_update_with_one_advantage,
    what_the_policy_wrote_is_trained_on_once_and_nothing_else_is,
    a_row_after_a_rewriting_begins_with_the_prompt_and_the_thought,
    vllm_and_the_actor_agree_on_every_tokens_probability_in_its_row,
    metrics_and_validation_count_trajectories,
)
