"""A real training whose trajectories are mostly two or three rows each, through veRL, Ray, FSDP and vLLM.

The protocol is the demo's with one difference: a thought ends the turn, and the context becomes the prompt
and that thought. So the demo's policy, which thinks before everything it does, rewrites its context without
having learned to, and a trajectory of several turns is trained as several rows. What it must have left
behind stands in rewriting_checks.py.
"""

from __future__ import annotations

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import run_demo
from rag_r1.training.added_overrides import SESSION_TRAINERS
from tests.e2e.demo_training import recording
from tests.e2e.rewriting_checks import CHECKS, RewritingRun

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

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
    "actor_rollout_ref.model.external_lib=tests.e2e.recording_updates",
    # The actor's own probabilities are taken before the step's first update, and compared with vLLM's.
    "algorithm.rollout_correction.bypass_mode=false",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    f"rag_r1.agent.max_turns={TURNS}",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RewritingRun:
    out = tmp_path_factory.mktemp("rewriting")
    (out / "forgetful.yaml").write_text(PROTOCOL)
    with recording(out, "recording_updates"):
        overrides = [*OVERRIDES, f"rag_r1.protocol={out / 'forgetful.yaml'}"]
        run_demo("grpo", out, seed=1, overrides=overrides, timeout_s=900)
    return RewritingRun(
        out,
        policy_path("rag_r1_mq"),
        steps=STEPS,
        questions=QUESTIONS,
        group=GROUP,
        updates_of_a_step=UPDATES,
        turns=TURNS,
        validated=VALIDATION,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(finished, check):
    check(finished)
