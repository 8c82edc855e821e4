"""The recipes of the memory in miniature: both protocols have the same budget and training, and no setting
counts rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from examples.memory.warm_start import memory_budget
from rag_r1.training.preflight.settings import check_rag_r1_keys
from tests.recipes.composed_recipes import refusals

pytestmark = pytest.mark.slow  # composed recipes

ROOT = Path(__file__).parents[2]
NAMES = ("memory_grpo", "memory_plain", "memory_ppo")


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    """memory_plain names its protocol's file from there."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_refused_and_the_warm_start_has_the_budget_of_the_training(name, model_folder, compose):
    config = compose(f"recipes/demo/{name}", f"critic.model.path={model_folder}")
    budget = memory_budget()
    assert refusals(config) == []
    settings, _ = check_rag_r1_keys(config)
    assert settings.protocol.rewrites_context == (name != "memory_plain")
    assert settings.agent.max_turns == budget.max_turns
    assert settings.agent.min_turn_tokens == budget.min_turn_tokens
    assert config.data.max_response_length == budget.max_response_tokens
    assert config.actor_rollout_ref.rollout.max_model_len == budget.max_context_tokens


def test_only_the_protocol_differs_between_memory_and_plain(compose):
    memory, plain = (
        OmegaConf.to_container(compose(f"recipes/demo/{name}"), resolve=False) for name in NAMES[:2]
    )
    assert memory["rag_r1"].pop("protocol") != plain["rag_r1"].pop("protocol")
    for config in (memory, plain):
        del config["trainer"]["experiment_name"]
    assert memory == plain
