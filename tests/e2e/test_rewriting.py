"""A real training whose trajectories are mostly two or three rows each, through veRL, Ray, FSDP and vLLM.

The protocol is the demo's with one difference: a thought ends the turn, and the context becomes the prompt
and that thought. So the demo's policy, which thinks before everything it does, rewrites its context without
having learned to, and a trajectory of several turns is trained as several rows. What is looked at is what the
actor's engine was given at each update (recording_updates.py), the trajectories, and veRL's metrics.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import run_demo
from rag_r1.train import SESSION_TRAINERS

pytestmark = [pytest.mark.e2e, pytest.mark.full]

PROTOCOL = """\
extends: rag_r1_mq
name: forgetful
tags:
  think: ["<reason>", "</reason>"]
blocks:
  notes: {tags: ["<think>", "</think>"], role: summary}
"""
STEPS, QUESTIONS, GROUP, UPDATES, VALIDATION = 2, 4, 8, 2, 12
#: Thought, search, thought, action: two rewritings. After them one more turn, which can only answer.
TURNS = 4
OVERRIDES = (
    "trainer.v1.trainer_mode=sessions_sync",
    f"++{SESSION_TRAINERS}",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"data.val_max_samples={VALIDATION}",
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS // UPDATES}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.model.external_lib=recording_updates",
    # The actor's own probabilities are taken before the step's first update, and compared with vLLM's.
    "algorithm.rollout_correction.bypass_mode=false",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    f"rag_r1.agent.max_turns={TURNS}",
)


@dataclass
class Finished:
    """What a training has left behind."""

    out: Path

    @cached_property
    def updates(self) -> list[list[dict[str, Any]]]:
        """The rows of each update, without padding."""
        return [[row for row in rows if not row["uid"].startswith("pad")] for rows in self.cut]

    @cached_property
    def cut(self) -> list[list[dict[str, Any]]]:
        """The rows of each update."""
        return json_lines(self.out / "updates.jsonl")

    @cached_property
    def steps(self) -> dict[int, dict[str, float]]:
        """veRL's metrics of each step."""
        entries = json_lines(self.out / "metrics.jsonl")
        return {entry["step"]: entry["data"] for entry in entries if "search/samples" in entry["data"]}

    def records(self, split: str) -> list[dict[str, Any]]:
        """The trajectories."""
        files = sorted((self.out / "trajectories" / split).glob("step_*.jsonl"))
        return [record for path in files for record in json_lines(path)]

    def sessions(self, rows: list[dict[str, Any]]) -> dict[tuple, list[dict[str, Any]]]:
        """The rows by trajectory."""
        found = defaultdict(list)
        for row in rows:
            found[row["uid"], row["session_id"]].append(row)
        return found


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
    out = tmp_path_factory.mktemp("rewriting")
    (out / "forgetful.yaml").write_text(PROTOCOL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_ENGINE_VENDOR", "recording_updates")
        patch.setenv("RAG_R1_RECORD", str(out))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        overrides = [*OVERRIDES, f"rag_r1.protocol={out / 'forgetful.yaml'}"]
        run_demo("grpo", out, seed=1, overrides=overrides, timeout_s=900)
    return Finished(out)


def rows_of(record: dict[str, Any]) -> list[str]:
    """What the policy wrote in each row of a trajectory."""
    texts: dict[int, str] = defaultdict(str)
    for turn in record["turns"]:
        texts[turn["row"]] += turn["text"]
    return [text for _, text in sorted(texts.items()) if text]


def test_trajectories_have_different_numbers_of_rows_and_most_have_more_than_one(finished: Finished):
    counts = Counter(len(rows_of(record)) for record in finished.records("train"))
    assert set(counts) <= set(range(1, TURNS + 2))
    assert sum(n for rows, n in counts.items() if rows > 1) > STEPS * QUESTIONS * GROUP // 2
    assert len(counts) > 1


def test_a_step_has_the_updates_of_one_row_for_each_trajectory(finished: Finished):
    assert len(finished.updates) == STEPS * UPDATES
    for rows, cut in zip(finished.updates, finished.cut, strict=True):
        assert len(finished.sessions(rows)) == QUESTIONS // UPDATES * GROUP
        assert len(cut) >= len(rows)
    for step in range(STEPS):
        parts = finished.cut[step * UPDATES : (step + 1) * UPDATES]
        assert len({len(rows) for rows in parts}) == 1, "mini-batches are padded to one size"


def test_all_rows_of_a_trajectory_are_in_one_update_with_one_advantage(finished: Finished):
    seen = Counter(name for rows in finished.updates for name in finished.sessions(rows))
    assert set(seen.values()) == {1} and len(seen) == STEPS * QUESTIONS * GROUP
    for rows in finished.updates:
        for own in finished.sessions(rows).values():
            values = {
                round(value, 6)
                for row in own
                for value, bit in zip(row["advantages"], row["response_mask"], strict=True)
                if bit
            }
            assert len(values) == 1
    advantages = [v for rows in finished.updates for row in rows for v in row["advantages"]]
    assert any(advantages), "some group had different rewards"


def test_what_the_policy_wrote_is_trained_on_once_and_nothing_else_is(finished: Finished):
    decode = AutoTokenizer.from_pretrained(policy_path("rag_r1_mq")).decode
    written = Counter(text for record in finished.records("train") for text in rows_of(record))
    trained = Counter()
    for row in (row for rows in finished.updates for row in rows):
        generated = [t for t, bit in zip(row["responses"], row["response_mask"], strict=True) if bit]
        trained[decode(generated, skip_special_tokens=True)] += 1
        assert row["loss_mask"][-len(row["responses"]) :] == row["response_mask"]
    assert trained == written
    padding = [row for rows in finished.cut for row in rows if row["uid"].startswith("pad")]
    assert not any(bit for row in padding for bit in row["response_mask"])


def test_a_row_after_a_rewriting_begins_with_the_prompt_and_the_thought(finished: Finished):
    decode = AutoTokenizer.from_pretrained(policy_path("rag_r1_mq")).decode
    rewritten = 0
    for rows in finished.updates:
        for own in finished.sessions(rows).values():
            first = min((row["prompts"] for row in own), key=len)
            for row in own:
                if len(row["prompts"]) > len(first):
                    assert row["prompts"][: len(first)] == first
                    assert decode(row["prompts"][len(first) :]).rstrip().endswith("</think>")
                    rewritten += 1
    assert rewritten > 0


def test_vllm_and_the_actor_agree_on_every_tokens_probability_in_its_row(finished: Finished):
    assert sorted(finished.steps) == list(range(1, STEPS + 1))
    for data in finished.steps.values():
        assert data["training/rollout_probs_diff_max"] < 1e-3
    # A step whose rewards are all equal has no gradient.
    assert max(data["actor/grad_norm"] for data in finished.steps.values()) > 0


def test_metrics_and_validation_count_trajectories(finished: Finished):
    by_step = defaultdict(list)
    for record in finished.records("train"):
        by_step[record["step"]].append(record)
    for step, data in finished.steps.items():
        assert data["search/samples"] == QUESTIONS * GROUP == len(by_step[step])
        right = sum(record["rewards"]["em"] for record in by_step[step])
        assert data["search/em"] == pytest.approx(right / len(by_step[step]))
        assert data["search/left_out"] == data["search/lost"] == data["search/masked"] == 0
        assert data["sessions/rows"] == pytest.approx(
            sum(len(rows_of(record)) for record in by_step[step]) / len(by_step[step])
        )
    assert len(finished.records("val")) == 2 * VALIDATION, "one record for each question, before and after"
