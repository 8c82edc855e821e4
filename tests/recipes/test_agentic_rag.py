"""Agentic RAG-R1: its recipes hold the released numbers and pass all checks, also those of sessions."""

from __future__ import annotations

import pytest

from rag_r1.rewards import RewardSum
from rag_r1.runs.errors import RunError
from rag_r1.training.preflight.model import check_quantisation
from rag_r1.training.preflight.settings import check_rag_r1_keys
from tests.recipes.composed_recipes import changed, compose_quickly, refusals, user_values

pytestmark = pytest.mark.slow  # composed recipes

RECIPES = [f"recipes/agentic_rag/{name}" for name in ("grpo", "grpo_lora", "dapo_lora")]
TOOLS = "recipes/agentic_rag/grpo_tools"


@pytest.mark.parametrize("name", [*RECIPES, TOOLS])
def test_nothing_is_refused(name, compose):
    config = compose(name)
    assert refusals(config) == []
    protocol = check_rag_r1_keys(config)[0].protocol
    assert protocol.rewrites_context == (protocol.turns == "text") == (name != TOOLS)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("exact", {"em": 3.0, "agentic_rag_format": 1.0}),
        ("judged", {"judged_accuracy": 3.0, "context_relevance": 2.0, "agentic_rag_format": 1.0, "em": 0.0}),
        ("verl_dev", {"em": 5.0, "answer_block": 0.9, "think_block": 0.3, "query_relevance": 1.0}),
    ],
)
def test_each_reward_is_chosen_by_its_name_and_accepted(name, weights, model_folder, monkeypatch):
    monkeypatch.setenv("RAG_R1_JUDGE_URL", "http://127.0.0.1:9000/v1")
    monkeypatch.setenv("RAG_R1_JUDGE_MODEL", "judge")
    config = compose_quickly(RECIPES[1], [*user_values(model_folder), f"agentic_rag/reward={name}"])
    settings, problems = check_rag_r1_keys(config)
    assert [str(problem) for problem in problems] == []
    terms = RewardSum.from_config(settings.reward, settings.protocol).terms
    assert {term.name: term.weight for term in terms} == weights


def test_a_judge_whose_address_is_not_set_is_an_error_that_names_the_variable(model_folder, monkeypatch):
    monkeypatch.delenv("RAG_R1_JUDGE_URL", raising=False)
    with pytest.raises(RunError, match="RAG_R1_JUDGE_URL.*not found"):
        compose_quickly(RECIPES[1], [*user_values(model_folder), "agentic_rag/reward=judged"])


@pytest.mark.parametrize("key", ["load_in_4bit", "override_config.quantization_config"])
def test_quantised_weights_are_refused_with_what_to_use_instead(compose, key):
    config = changed(compose(RECIPES[1]), **{f"actor_rollout_ref.model.{key}": {"bits": 4}})
    (problem,) = check_quantisation(config)
    assert problem.where == f"actor_rollout_ref.model.{key}" and "nf4" in problem.what
    assert "lora_rank" in problem.remedy
