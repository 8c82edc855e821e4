"""The recipes of the memory in miniature: both protocols have the same budget and training, and no setting
counts rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from examples.memory.warm_start import memory_budget
from rag_r1.training.preflight.sessions import check_sessions
from rag_r1.training.preflight.settings import check_lengths, check_rag_r1_keys
from tests.recipes.composed_recipes import composed, given

pytestmark = pytest.mark.slow  # composed recipes

ROOT = Path(__file__).parents[2]
NAMES = ("memory_grpo", "memory_plain", "memory_ppo")


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    """memory_plain names its protocol's file from there."""
    monkeypatch.chdir(ROOT)


def config_of(name: str, model_folder):
    return composed(f"recipes/demo/{name}", *given(model_folder))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_refused(name, model_folder):
    config = config_of(name, model_folder)
    settings, problems = check_rag_r1_keys(config)
    problems += check_sessions(config, settings) + check_lengths(config)
    assert [str(problem) for problem in problems] == []
    assert settings.protocol.rewrites_context == (name != "memory_plain")


def test_only_the_protocol_differs_between_memory_and_plain(model_folder):
    memory, plain = (
        OmegaConf.to_container(config_of(name, model_folder), resolve=False) for name in NAMES[:2]
    )
    assert memory["rag_r1"].pop("protocol") != plain["rag_r1"].pop("protocol")
    for config in (memory, plain):
        del config["trainer"]["experiment_name"]
    assert memory == plain


def test_the_warm_start_has_the_budget_of_the_training(model_folder):
    for name in NAMES:
        config = config_of(name, model_folder)
        settings, _ = check_rag_r1_keys(config)
        budget = memory_budget()
        assert settings.agent.max_turns == budget.max_turns
        assert settings.agent.min_turn_tokens == budget.min_turn_tokens
        assert config.data.max_response_length == budget.max_response_tokens
        assert config.actor_rollout_ref.rollout.max_model_len == budget.max_context_tokens
