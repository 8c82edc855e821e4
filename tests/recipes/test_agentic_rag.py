"""Agentic RAG-R1: its recipes hold the released numbers and pass all checks, also those of sessions."""

from __future__ import annotations

from copy import deepcopy

import pytest
from omegaconf import OmegaConf, open_dict

from rag_r1.config.recipes import RecipeError
from rag_r1.rewards import RewardSum
from rag_r1.training.preflight.model import check_quantisation
from rag_r1.training.preflight.sampler import check_filtering, check_sampler
from rag_r1.training.preflight.sessions import check_sessions
from rag_r1.training.preflight.settings import check_lengths, check_log_probs, check_rag_r1_keys, check_verl
from tests.recipes.composed_recipes import compose_quickly, composed, given

pytestmark = pytest.mark.slow  # composed recipes

RECIPES = [f"recipes/agentic_rag/{name}" for name in ("grpo", "grpo_lora", "dapo_lora")]
TOOLS = "recipes/agentic_rag/grpo_tools"
#: src/config/config.yaml of the released code; its `mu` are the epochs.
RELEASED = {
    "rag_r1.agent.max_turns": 7,
    "rag_r1.agent.max_turn_tokens": 500,
    "data.max_response_length": 4000,
    "actor_rollout_ref.actor.optim.lr": 5e-6,
    "actor_rollout_ref.actor.ppo_epochs": 2,
    "actor_rollout_ref.actor.clip_ratio_low": 0.1,
    "actor_rollout_ref.actor.clip_ratio_high": 0.15,
    "actor_rollout_ref.actor.kl_loss_coef": 0.04,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.temperature": 0.7,
    "trainer.total_training_steps": 300,
    "trainer.save_freq": 20,
}
#: verl/spr1_scripts/train.sh of the branch verl_dev; it allows five turns.
RELEASED_TOOLS = {
    "rag_r1.agent.max_turns": 4,
    "data.train_batch_size": 256,
    "data.max_response_length": 4096,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.285,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.65,
    "trainer.total_epochs": 3,
    "trainer.save_freq": 30,
    "trainer.test_freq": 10,
}
#: What the recipes with adapters train with instead (tests/training/preflight/test_adapters.py shows why).
OURS_WITH_ADAPTERS = {"actor_rollout_ref.actor.optim.lr": 1e-4}
ADAPTERS = {"lora_rank": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize("name", RECIPES)
def test_holds_the_released_numbers(name, model_folder):
    config = composed(name, *given(model_folder))
    expected = {**RELEASED, **(OURS_WITH_ADAPTERS if name.endswith("lora") else {})}
    assert {key: OmegaConf.select(config, key) for key in RELEASED} == expected
    adapters = {key: OmegaConf.select(config.actor_rollout_ref.model, key) for key in ADAPTERS}
    assert (adapters == ADAPTERS) == name.endswith("lora")
    assert config.algorithm.filter_groups.enable == ("dapo" in name)


def test_the_tool_call_form_holds_the_numbers_of_its_branch(model_folder):
    config = composed(TOOLS, *given(model_folder))
    assert {key: OmegaConf.select(config, key) for key in RELEASED_TOOLS} == RELEASED_TOOLS


@pytest.mark.parametrize("name", [*RECIPES, TOOLS])
def test_nothing_is_refused(name, model_folder):
    config = composed(name, *given(model_folder))
    settings, problems = check_rag_r1_keys(config)
    problems += check_verl(config, True) + check_sessions(config, settings) + check_sampler(config)
    problems += check_filtering(config, settings) + check_lengths(config) + check_log_probs(config)
    assert [str(problem) for problem in problems + check_quantisation(config)] == []
    assert settings.protocol.rewrites_context == (settings.protocol.turns == "text") == (name != TOOLS)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("exact", {"em": 3.0, "agentic_rag_format": 1.0}),
        (
            "judged",
            {"judged_accuracy": 3.0, "context_relevance": 2.0, "agentic_rag_format": 1.0, "em": 0.0},
        ),
        ("verl_dev", {"em": 5.0, "answer_block": 0.9, "think_block": 0.3, "query_relevance": 1.0}),
    ],
)
def test_each_reward_is_chosen_by_its_name_and_accepted(name, weights, model_folder, monkeypatch):
    monkeypatch.setenv("RAG_R1_JUDGE_URL", "http://127.0.0.1:9000/v1")
    monkeypatch.setenv("RAG_R1_JUDGE_MODEL", "judge")
    config = compose_quickly(RECIPES[1], [*given(model_folder), f"agentic_rag/reward={name}"])
    settings, problems = check_rag_r1_keys(config)
    assert [str(problem) for problem in problems] == []
    terms = RewardSum.from_config(settings.reward, settings.protocol).terms
    assert {term.name: term.weight for term in terms} == weights


def test_a_judge_whose_address_is_not_set_is_an_error_that_names_the_variable(model_folder, monkeypatch):
    monkeypatch.delenv("RAG_R1_JUDGE_URL", raising=False)
    with pytest.raises(RecipeError, match="RAG_R1_JUDGE_URL.*not found"):
        compose_quickly(RECIPES[1], [*given(model_folder), "agentic_rag/reward=judged"])


@pytest.mark.parametrize("key", ["load_in_4bit", "override_config.quantization_config"])
def test_quantised_weights_are_refused_with_what_to_use_instead(model_folder, key):
    config = deepcopy(composed(RECIPES[1], *given(model_folder)))
    OmegaConf.set_readonly(config, False)
    with open_dict(config):
        OmegaConf.update(config, f"actor_rollout_ref.model.{key}", {"bits": 4})
    (problem,) = check_quantisation(config)
    assert problem.where == f"actor_rollout_ref.model.{key}" and "nf4" in problem.what
    assert "lora_rank" in problem.remedy
