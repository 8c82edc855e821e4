"""What a training with Agentic RAG-R1's memory must have left behind, whatever its advantage estimator: each
check raises AssertionError, or KeyError for what is not there.

Read are the rows of each update of the actor (`updates.jsonl`, see recording_updates.py) and the
trajectories. Those checks of rewriting_checks.py that depend on no estimator are made as well (`SHARED`).
tests/e2e/test_memory_checks.py spoils a run and sees that a check notices.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from tests.e2e import rewriting_checks
from tests.e2e.left_behind import generated
from tests.e2e.rewriting_checks import RewritingRun, sessions

Row = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """A trajectory: the rows in which it was trained, and its record."""

    rows: list[Row]
    record: dict[str, Any]

    @property
    def em(self) -> float:
        return self.record["rewards"]["em"]

    @property
    def prompt(self) -> list[int]:
        """The prompt of its first row."""
        return min((row["prompts"] for row in self.rows), key=len)

    def values(self, name: str) -> list[float]:
        """A column of all its rows, on generated tokens."""
        return [
            value
            for row in self.rows
            for value, bit in zip(row[name], row["response_mask"], strict=True)
            if bit
        ]


@dataclass(frozen=True)
class MemoryRun(RewritingRun):
    """The finished training; `estimator`: `grpo`, `gae` or `reinforce_plus_plus`; `removing`: the kinds of
    turns that its protocol has for taking turns out of a context."""

    estimator: str = "grpo"
    removing: tuple[str, ...] = ("summary", "backtrack")

    @cached_property
    def steps_played(self) -> list[list[Played]]:
        """The trajectories of each step. Rows and record share the question and the number in the group."""
        records = {
            (record["question"], int(record["id"].rpartition("#")[2])): record
            for record in self.records("train")
        }
        steps = []
        for step in range(self.steps):
            of_step = self.updates[step * self.updates_of_a_step : (step + 1) * self.updates_of_a_step]
            steps.append(
                [
                    Played(of_session, records[self.question(of_session), int(of_session[0]["session_id"])])
                    for rows in of_step
                    for of_session in sessions(rows).values()
                ]
            )
        return steps

    def question(self, rows: list[Row]) -> str:
        """What the prompt of these rows asks."""
        prompt = self.text(min((row["prompts"] for row in rows), key=len))
        return prompt.partition("Question: ")[2].partition("\n")[0]

    def text(self, ids: Any) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def turns_that_take_others_away_made_rows(run: MemoryRun) -> None:
    played = [trajectory for step in run.steps_played for trajectory in step]
    for action in run.removing:
        of_action = [trajectory for trajectory in played if removed_by(trajectory.record, action)]
        assert of_action, f"no {action} took anything out of a context"
        assert all(len(trajectory.rows) > 1 for trajectory in of_action)


def the_score_counts_once_for_a_trajectory(run: MemoryRun) -> None:
    assert {trajectory.em for step in run.steps_played for trajectory in step} == {0.0, 1.0}, (
        "right and wrong answers"
    )
    for step in run.steps_played:
        if run.estimator == "grpo":
            _one_vote_in_the_group(step)
        else:
            for trajectory in step:
                assert trajectory.values("returns") == pytest.approx(
                    [trajectory.em] * len(trajectory.values("returns")), abs=1e-4
                )
        if run.estimator == "reinforce_plus_plus":
            _whitened_over_tokens(step)


def _one_vote_in_the_group(step: list[Played]) -> None:
    groups = defaultdict(list)
    for trajectory in step:
        groups[trajectory.rows[0]["uid"]].append(trajectory)
    for group in groups.values():
        scores = [trajectory.em for trajectory in group]
        mean, spread = fmean(scores), stdev(scores)
        for trajectory in group:
            expected = (trajectory.em - mean) / (spread + 1e-6)
            assert trajectory.values("advantages") == pytest.approx(
                [expected] * len(trajectory.values("advantages")), abs=1e-4
            )


def _whitened_over_tokens(step: list[Played]) -> None:
    returns = [value for trajectory in step for value in trajectory.values("returns")]
    mean, spread = fmean(returns), pstdev(returns)
    for trajectory in step:
        expected = (trajectory.em - mean) / max(spread, 1e-4)
        assert trajectory.values("advantages") == pytest.approx(
            [expected] * len(trajectory.values("advantages")), rel=0.01, abs=0.01
        )


def engine_and_actor_agree_on_every_generated_token(run: MemoryRun) -> None:
    for step in run.steps_played:
        for trajectory in step:
            sampled = trajectory.values("rollout_log_probs")
            assert trajectory.values("old_log_probs") == pytest.approx(sampled, abs=1e-4)
            assert any(sampled), "log-probs, and not zeros"


def a_context_is_the_prompt_and_the_turns_that_stay(run: MemoryRun) -> None:
    contexts = 0
    for step in run.steps_played:
        for trajectory in step:
            prompt = run.text(trajectory.prompt)
            trained = {(run.text(row["prompts"]), run.text(generated(row))) for row in trajectory.rows}
            for kept, written in rewritten_contexts(trajectory.record):
                assert (prompt + kept, written) in trained
                contexts += 1
    assert contexts > 0


def removed_by(record: dict[str, Any], action: str) -> bool:
    """Did a turn of this kind take turns out of the context?"""
    return any(turn["action"] == action and turn["removed"] for turn in record["turns"])


def rewritten_contexts(record: dict[str, Any]) -> list[tuple[str, str]]:
    """For each row after the first: the text that follows the prompt in its context, and what was written in
    the row. Contexts in which a page is left are not listed, since records have no texts of observations."""
    turns, contexts = record["turns"], []
    for row in range(1, 1 + max(turn["row"] for turn in turns)):
        first = next((n for n, turn in enumerate(turns) if turn["row"] == row), None)
        if first is None:
            continue
        gone = {n for turn in turns[:first] for n in turn["removed"]}
        stays = [turn for n, turn in enumerate(turns[:first]) if n not in gone]
        if not any(turn["observed_tokens"] for turn in stays):
            written = "".join(turn["text"] for turn in turns if turn["row"] == row)
            contexts.append(("".join(turn["text"] for turn in stays), written))
    return contexts


CHECKS = (
    turns_that_take_others_away_made_rows,
    the_score_counts_once_for_a_trajectory,
    engine_and_actor_agree_on_every_generated_token,
    a_context_is_the_prompt_and_the_turns_that_stay,
)
SHARED = (
    rewriting_checks.a_step_has_the_updates_of_one_row_for_each_trajectory,
    rewriting_checks.what_the_policy_wrote_is_trained_on_once_and_nothing_else_is,
    rewriting_checks.vllm_and_the_actor_agree_on_every_tokens_probability_in_its_row,
    rewriting_checks.metrics_and_validation_count_trajectories,
)
