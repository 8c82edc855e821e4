"""What a finished training must have left behind, whatever it was: each function raises AssertionError.

Read are what the actor's training engine was given (`actor.jsonl`, see recording_engine.py), the trajectories
that the reward manager dumped, and the metrics that veRL logged. tests/e2e/test_run_checks.py tampers with
each of them and sees that a check notices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from rag_r1.agent.records import read_records, records_by_step
from rag_r1.protocols import load_protocol
from tests.e2e.left_behind import FinishedRun, json_lines


@dataclass(frozen=True)
class Run(FinishedRun):
    """A finished run, and what its settings let expect."""

    corpus: Path  # JSONL with the ids of all passages
    steps: int
    samples: int  # trajectories of a step
    validation: str  # the split that was validated
    validated: int  # trajectories of one validation; there is one before training and one after

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """What veRL logged, by step."""
        by_step: dict[int, dict[str, float]] = {}
        for entry in json_lines(self.out / "metrics.jsonl"):
            by_step.setdefault(entry["step"], {}).update(entry["data"])
        return by_step

    def records(self, split: str) -> list[dict[str, Any]]:
        """The trajectories of a split that were dumped."""
        return [r for played in records_by_step(self.out / "trajectories" / split).values() for r in played]


def tokens(row: dict, mask: int) -> list[int]:
    """The response's tokens that the policy wrote (1) or was shown (0)."""
    return [token for token, m in zip(row["responses"], row["response_mask"], strict=True) if m == mask]


def stretches(row: dict, mask: int) -> list[list[int]]:
    """The same tokens, each uninterrupted stretch by itself."""
    pairs = zip(row["responses"], row["response_mask"], strict=True)
    return [[t for t, _ in stretch] for m, stretch in groupby(pairs, key=itemgetter(1)) if m == mask]


def every_sample_is_scored_and_trained_on_once(run: Run) -> None:
    trained = run.records("train")
    assert len(trained) == len(run.rows) == run.samples * run.steps
    assert Counter(record["step"] for record in trained) == dict.fromkeys(
        range(1, run.steps + 1), run.samples
    )
    dumped = Counter(record["id"] for record in read_records(run.out / "trajectories" / "train"))
    assert set(dumped.values()) == {1}
    assert all(isinstance(record["rewards"]["score"], float) for record in trained)


def it_was_validated_before_and_after(run: Run) -> None:
    assert len(run.records(run.validation)) == 2 * run.validated
    scored = [
        step for step, data in run.metrics.items() if any("/em/" in k and k[:4] == "val-" for k in data)
    ]
    assert sorted(scored) == [0, run.steps]


def the_actor_is_trained_on_what_the_policy_wrote_and_on_nothing_else(run: Run) -> None:
    written = Counter("".join(turn["text"] for turn in r["turns"]) for r in run.records("train"))
    decode = run.tokenizer.decode
    assert Counter(decode(tokens(row, 1), skip_special_tokens=True) for row in run.rows) == written


def observations_are_in_the_actors_context_but_outside_its_loss(run: Run) -> None:
    records = run.records("train")
    hint = load_protocol(records[0]["protocol"]).invalid_hint
    searched = 0
    for row in run.rows:
        observed = [run.tokenizer.decode(ids) for ids in stretches(row, 0)]
        for text in observed:
            is_observation = text.startswith("\n<information>\n") and text.endswith("\n</information>\n")
            assert is_observation or text == hint
        searched += any(text != hint for text in observed)
        if observed:
            assert row["response_mask"][0] == row["response_mask"][-1] == 1
        assert row["loss_mask"][-len(row["responses"]) :] == row["response_mask"]
        assert row["input_ids"] == row["prompts"] + row["responses"]
    # On the smoke run's real questions the demo's policy searches in a fourth to a half of its trajectories.
    assert searched > len(run.rows) // (10 if run.validation == "test" else 4)
    # On real questions the tiny policy now and then writes that tag itself; nobody else's is trained on.
    trained_on = "".join(run.tokenizer.decode(tokens(row, 1)) for row in run.rows)
    written = "".join(turn["text"] for record in records for turn in record["turns"])
    assert trained_on.count("<information>") == written.count("<information>")


def documents_in_the_context_came_from_the_corpus(run: Run) -> None:
    corpus = {row["id"]: row["contents"] for row in json_lines(run.corpus)}
    documents = [
        document
        for record in run.records("train")
        for turn in record["turns"]
        for call in turn["calls"]
        for document in call["documents"] or []
    ]
    assert documents and all(document["id"] in corpus for document in documents)


def no_search_failed_and_the_metrics_of_the_terms_are_logged(run: Run) -> None:
    entries = [data for data in run.metrics.values() if "search/em" in data]
    assert len(entries) == run.steps
    for entry in entries:
        assert entry["search/tool_failures"] == entry["search/bad_row"] == 0
        assert entry["search/score"] == pytest.approx(entry["critic/score/mean"], abs=1e-5)  # 2^-16 apart


def rollout_and_actor_agree_on_the_probability_of_every_token(run: Run) -> None:
    # With bypass_mode vLLM's log-probabilities are the old ones, and there is one update a step: PPO's KL and
    # clipping compare vLLM's probabilities with the actor's own for the same tokens and weights.
    updates = [data for data in run.metrics.values() if "actor/ppo_kl" in data]
    assert len(updates) == run.steps
    for data in updates:
        assert abs(data["actor/ppo_kl"]) < 1e-4 and data["actor/pg_clipfrac"] == 0


CHECKS = (
    every_sample_is_scored_and_trained_on_once,
    it_was_validated_before_and_after,
    the_actor_is_trained_on_what_the_policy_wrote_and_on_nothing_else,
    observations_are_in_the_actors_context_but_outside_its_loss,
    documents_in_the_context_came_from_the_corpus,
    no_search_failed_and_the_metrics_of_the_terms_are_logged,
    rollout_and_actor_agree_on_the_probability_of_every_token,
)
