"""The agent's recipe of Agentic-R composes, passes veRL's validation and holds the published numbers."""

from __future__ import annotations

import pytest

from rag_r1.config.recipes import RECIPES
from rag_r1.iterate.plan import read_plan
from tests.recipes.composed_recipes import refusals, values_of
from tests.recipes.test_published import PUBLISHED

pytestmark = pytest.mark.slow  # a composed recipe takes most of a second


def test_it_passes_verls_own_validation_and_holds_the_published_numbers_in_each_round(compose):
    agent = read_plan(RECIPES / "agentic_r" / "iterate.yaml").agent
    config = compose(agent.recipe, *agent.overrides, *agent.keys, "rag_r1.retriever.agentic_input=true")
    assert values_of(config, PUBLISHED[agent.recipe]) == PUBLISHED[agent.recipe]
    assert refusals(config) == []


def test_it_leaves_a_model_that_the_next_step_can_use(compose):
    config = compose("recipes/agentic_r/agent")
    assert config.trainer.save_freq > 0 and config.trainer.resume_mode == "auto"
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
