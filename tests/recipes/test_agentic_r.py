"""The agent's recipe of Agentic-R composes, passes veRL's validation and holds the published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import RECIPES
from rag_r1.iterate.plan import read_plan
from rag_r1.training.preflight.settings import check_lengths, check_required_keys, check_verl
from tests.recipes.composed_recipes import composed, given

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second

#: The paper's numbers (arXiv 2601.11888).
PUBLISHED = {
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.285,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "critic.optim.lr": 1e-5,
    "critic.optim.lr_warmup_steps_ratio": 0.015,
    "data.train_batch_size": 512,
    "data.max_prompt_length": 2048,
    "rag_r1.agent.max_turns": 4,
    "rag_r1.agent.final_turn": True,
    "rag_r1.agent.max_turn_tokens": 800,
    "rag_r1.agent.max_query_observation_tokens": 800,
    "rag_r1.retriever.topk": 3,
    "rag_r1.reward": [{"term": "em", "weight": 1.0}],
}


def test_it_passes_verls_own_validation_and_holds_the_published_numbers_in_each_round(model_folder: Path):
    agent = read_plan(RECIPES / "agentic_r" / "iterate.yaml").agent
    more = [*agent.overrides, *agent.keys, *given(model_folder), "rag_r1.retriever.agentic_input=true"]
    config = composed(agent.recipe, *more)
    assert {key: OmegaConf.select(config, key) for key in PUBLISHED} == PUBLISHED
    assert check_required_keys(config) == [] and check_lengths(config) == []
    assert check_verl(config, model_is_there=True) == []


def test_it_leaves_a_model_that_the_next_step_can_use(model_folder: Path):
    config = composed("recipes/agentic_r/agent", *given(model_folder))
    assert config.trainer.save_freq > 0 and config.trainer.resume_mode == "auto"
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
