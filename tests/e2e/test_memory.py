"""Real trainings with a memory, by each estimator that it is allowed with: GRPO, PPO with a critic and GAE,
REINFORCE++; through veRL, Ray, FSDP and vLLM.

The protocol is the demo's with one difference: a thought that ends with `I need to search.` ends the turn and
is a backtrack, which takes the last search and what it found away and stays as a reflection. So the demo's
policy, which thinks before everything it does, uses the memory without having learned to: a trajectory with
two searches is two rows. Summaries are trained in test_rewriting.py. What a training must have left behind
stands in memory_checks.py.
"""

from __future__ import annotations

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import TrainingInputs, run_demo
from rag_r1.demo.world import PROMPT
from rag_r1.protocols import load_protocol
from rag_r1.training.added_overrides import SESSION_TRAINERS
from tests.e2e.demo_training import recording
from tests.e2e.memory_checks import CHECKS, SHARED, MemoryRun

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

PROTOCOL = """\
extends: rag_r1_sq
name: thoughts_in_memory
tags:
  think: ["<reason>", "</reason>"]
blocks:
  reflection: {tags: ["<think>", "search. </think>"], role: backtrack, pops: [call]}
"""
STEPS, UPDATES, VALIDATION, TURNS = 2, 2, 12, 6
#: estimator -> (recipe, questions of a step, trajectories of a question, more overrides)
TRAININGS = {
    "grpo": ("grpo", 4, 8, ()),
    "gae": ("ppo_sq", 32, 1, ("critic.ppo_mini_batch_size=16",)),
    "reinforce_plus_plus": ("grpo", 8, 4, ("algorithm.adv_estimator=reinforce_plus_plus",)),
}


@pytest.fixture(scope="module", params=["grpo", "gae", "reinforce_plus_plus"])
def finished(request, tmp_path_factory) -> MemoryRun:
    recipe, questions, group, more = TRAININGS[request.param]
    out = tmp_path_factory.mktemp(request.param)
    (out / "memory.yaml").write_text(PROTOCOL)
    ground = TrainingInputs(load_protocol(str(out / "memory.yaml"), PROMPT), policy_path("rag_r1_sq"))
    overrides = [
        f"rag_r1.protocol={out / 'memory.yaml'}",
        "rag_r1.reward=[{term: em, weight: 1.0}]",
        f"rag_r1.agent.max_turns={TURNS}",
        "trainer.v1.trainer_mode=sessions_sync",
        f"++{SESSION_TRAINERS}",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        f"data.val_max_samples={VALIDATION}",
        f"data.train_batch_size={questions}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={questions // UPDATES}",
        f"actor_rollout_ref.rollout.n={group}",
        "actor_rollout_ref.model.external_lib=tests.e2e.recording_updates",
        # The actor's own log-probs are taken before the step's first update, and compared with vLLM's.
        "algorithm.rollout_correction.bypass_mode=false",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        *more,
    ]
    with recording(out, "recording_updates"):
        run_demo(recipe, out, seed=1, overrides=overrides, timeout_s=1100, inputs=ground)
    return MemoryRun(
        out,
        ground.policy,
        steps=STEPS,
        questions=questions,
        group=group,
        updates_of_a_step=UPDATES,
        turns=TURNS,
        validated=VALIDATION,
        estimator=request.param,
        removing=("backtrack",),
    )


@pytest.mark.parametrize("check", [*CHECKS, *SHARED], ids=lambda check: check.__name__)
def test_a_finished_training(finished, check):
    check(finished)
