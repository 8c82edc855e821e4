"""Two settings of GPU runs in real trainings on this CPU: DAPO's group filtering, and merged adapters.

What they must have left behind stands in dapo_and_lora_checks.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dapo_and_lora_checks import DAPO_CHECKS, LORA_CHECKS, GroupedRun

from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.full]

STEPS, QUESTIONS = 3, 4
SMALL = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "data.val_max_samples=12",
    f"data.train_batch_size={QUESTIONS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={QUESTIONS}",
    "actor_rollout_ref.model.external_lib=recording_engine",
]


def trained(out: Path, group: int, *overrides: str) -> GroupedRun:
    """Run the demo's GRPO with `group` answers to a question."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_ENGINE_VENDOR", "recording")
        patch.setenv("RAG_R1_RECORD", str(out))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        run_demo(
            "grpo",
            out,
            seed=1,
            overrides=[*SMALL, f"actor_rollout_ref.rollout.n={group}", *overrides],
            timeout_s=900,
        )
    return GroupedRun(out, policy_path("rag_r1_mq"), STEPS, QUESTIONS, group)


def test_groups_with_one_reward_are_filtered_and_refilled(tmp_path: Path):
    # Two answers are both right or both wrong about every other time; with eight, no group may be.
    run = trained(
        tmp_path,
        2,
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=em",
        "algorithm.filter_groups.max_num_gen_batches=8",
    )
    for check in DAPO_CHECKS:
        check(run)


def test_merged_adapters_reach_the_engine_after_every_update(tmp_path: Path):
    run = trained(
        tmp_path,
        8,
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora.merge=true",
        "actor_rollout_ref.actor.optim.lr=1e-2",
    )
    for check in LORA_CHECKS:
        check(run)
