"""Two settings of GPU runs in real trainings on this CPU: DAPO's group filtering, and merged adapters."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from rag_r1.demo.run import run_demo
from rag_r1.records import records_by_step

pytestmark = [pytest.mark.e2e, pytest.mark.full]

STEPS, QUESTIONS, GROUP = 3, 4, 8
SMALL = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "data.val_max_samples=12",
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "actor_rollout_ref.model.external_lib=recording_engine",
]


def trained(out: Path, *overrides: str) -> tuple[dict[int, dict], list[dict]]:
    """Run the demo's GRPO; returns veRL's metrics by step, and the rows that the actor was trained on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_ENGINE_VENDOR", "recording")
        patch.setenv("RAG_R1_RECORD", str(out))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        run_demo("grpo", out, seed=1, overrides=[*SMALL, *overrides], timeout_s=900)
    steps: dict[int, dict] = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "search/samples" in entry["data"]:
            steps[entry["step"]] = entry["data"]
    assert sorted(steps) == list(range(1, STEPS + 1))
    return steps, [json.loads(line) for line in (out / "actor.jsonl").read_text().splitlines()]


def test_groups_with_one_reward_are_filtered_and_refilled(tmp_path: Path):
    steps, rows = trained(
        tmp_path,
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=em",
        "algorithm.filter_groups.max_num_gen_batches=8",
    )
    played = records_by_step(tmp_path / "trajectories" / "train")
    for step, data in steps.items():
        groups = defaultdict(list)
        for record in played[step]:
            groups[record["id"].rpartition("#")[0]].append(record["rewards"]["em"])
        constant = [values for values in groups.values() if len(set(values)) == 1]
        assert data["search/filtered_groups"] == len(constant)
        assert data["search/refilled_groups"] == len(groups) - QUESTIONS
        assert data["search/samples"] == len(played[step]) == len(groups) * GROUP
        assert data["search/short_groups"] == data["search/unusable_groups"] == 0
    for name in ("filtered", "refilled"):
        assert sum(data[f"search/{name}_groups"] for data in steps.values()) > 0
    assert len(rows) == STEPS * QUESTIONS * GROUP, "full batches, and nothing else is trained on"


def test_merged_adapters_reach_the_engine_after_every_update(tmp_path: Path):
    steps, _ = trained(
        tmp_path,
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora.merge=true",
        "actor_rollout_ref.actor.optim.lr=1e-2",
    )
    # vLLM's probabilities are the old ones, and there is one update a step: were its weights those of before,
    # the actor's own probabilities would differ from them as soon as it has learned something.
    for data in steps.values():
        assert abs(data["actor/ppo_kl"]) < 1e-4 and data["actor/pg_clipfrac"] == 0
        assert data["actor/grad_norm"] > 0
