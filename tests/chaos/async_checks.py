"""What an asynchronous training must have left behind: each check raises AssertionError, or KeyError for a
metric that is not there.

Read are veRL's metrics of each step, the trajectories, what each of them generated and called
(`journal.jsonl`, see journal_loop.py), and what the actor was trained on (`actor.jsonl`).
tests/chaos/test_async_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tests.e2e.left_behind import FinishedRun, json_lines, texts_of_records, texts_of_rows

Event = dict[str, Any]


@dataclass(frozen=True)
class AsyncRun(FinishedRun):
    """The finished training."""

    steps: int
    samples: int  # trajectories of a step
    LOG = "run.jsonl"

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """The trajectories by name, also those that were not trained on before the run ended."""
        return {record["id"]: record for records in self.trained.values() for record in records}

    @cached_property
    def journal(self) -> dict[str, list[Event]]:
        """The events of each trajectory."""
        return {line["id"]: line["events"] for line in json_lines(self.out / "journal.jsonl")}

    @cached_property
    def held(self) -> list[tuple[str, int]]:
        """Trajectory and place of each call that was held back."""
        return [(name, i) for name, events in self.journal.items() for i, e in enumerate(events) if held(e)]


def held(event: Event) -> bool:
    return event.get("held", False)


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
    assert max(data["training/off_policy/trajectory_spans/max"] for data in run.metrics.values()) >= 2
    for data in run.metrics.values():
        assert data["training/off_policy/trajectory_spans/min"] >= 1
        assert data["training/off_policy/trajectory_staleness/min"] >= 0


def the_actor_is_trained_on_what_the_policy_wrote_and_on_no_row_twice(run: AsyncRun) -> None:
    written = texts_of_records(run.records.values())
    trained_on = texts_of_rows(run.rows, run.tokenizer)
    assert sum(trained_on.values()) == run.steps * run.samples
    assert not trained_on - written


def a_call_was_under_way_while_the_weights_were_updated_and_was_answered(run: AsyncRun) -> None:
    assert len(run.held) == 1
    ((name, place),) = run.held
    call = run.journal[name][place]
    assert call["updated"] and call["ended"]
    turn = next(turn for turn in run.records[name]["turns"] if turn["calls"])
    assert [called["status"] for called in turn["calls"]] == ["ok"] * len(call["queries"])


def the_turn_before_that_call_is_of_older_weights_and_the_turn_after_it_of_newer_ones(run: AsyncRun) -> None:
    ((name, place),) = run.held
    before, _, after = run.journal[name][place - 1 : place + 2]
    assert before["last"] < after["first"]


def every_turn_was_generated_once_and_every_call_made_once(run: AsyncRun) -> None:
    assert set(run.records) <= set(run.journal)
    for name, record in run.records.items():
        assert record["retries"] == 0
        expected: list[list[str] | None] = []
        for turn in record["turns"]:
            expected.append(None)
            if turn["calls"]:
                expected.append([call["arguments"]["query"] for call in turn["calls"]])
        assert [event.get("queries") for event in run.journal[name]] == expected


def every_turn_goes_on_after_all_that_was_written_and_observed_before(run: AsyncRun) -> None:
    for name in run.records:
        for (before, turn), (after, _) in pairwise(generations(run, name)):
            so_far = with_its_turn(before, turn)
            assert after["context"][: len(so_far)] == so_far
            assert len(after["context"]) == len(so_far) + turn["observed_tokens"]


def the_actor_is_trained_on_the_tokens_that_were_generated_and_on_that_trajectory_too(run: AsyncRun) -> None:
    played = {name: tuple(with_its_turn(*generations(run, name)[-1])) for name in run.records}
    trained_on = Counter(tuple(row["prompts"] + row["responses"]) for row in run.rows)
    assert not trained_on - Counter(played.values())
    assert all(played[name] in trained_on for name, _ in run.held)


def generations(run: AsyncRun, name: str) -> list[tuple[Event, dict[str, Any]]]:
    """What was generated in each turn of a trajectory, with the turn."""
    generated = [event for event in run.journal[name] if "ids" in event]
    return list(zip(generated, run.records[name]["turns"], strict=True))


def with_its_turn(event: Event, turn: dict[str, Any]) -> list[int]:
    """The context of a turn with its own tokens. (What a resumed engine writes after a stop string that was
    cut in two is not the turn's: rag_r1/plugin/agent_loop.py, `_until_stop`.)"""
    return event["context"] + event["ids"][: turn["generated_tokens"]]


CHECKS = (
    every_step_has_all_of_its_samples,
    every_token_has_the_probability_that_the_actor_gives_to_it,
    trajectories_went_through_weight_updates_and_their_versions_say_so,
    the_actor_is_trained_on_what_the_policy_wrote_and_on_no_row_twice,
    a_call_was_under_way_while_the_weights_were_updated_and_was_answered,
    the_turn_before_that_call_is_of_older_weights_and_the_turn_after_it_of_newer_ones,
    every_turn_was_generated_once_and_every_call_made_once,
    every_turn_goes_on_after_all_that_was_written_and_observed_before,
    the_actor_is_trained_on_the_tokens_that_were_generated_and_on_that_trajectory_too,
)
