"""Composing a recipe: soon, quietly, and to what veRL composes itself."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir

from rag_r1.config.recipes import Recipe
from rag_r1.training.composition import compose_recipe, compose_valid


def test_veRL_is_not_imported_to_compose_a_recipe():
    composing = """
import sys
from rag_r1.config.recipes import Recipe
from rag_r1.training.composition import compose_recipe

assert compose_recipe(Recipe.find("rag_r1/grpo"), []).trainer.nnodes == 1
assert "verl" not in sys.modules and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", composing], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rag_r1/grpo", "rag_r1/sft/demo"])
def test_a_recipe_composes_to_what_a_process_of_veRL_composes(name):
    recipe = Recipe.find(name)
    composed = compose_recipe(recipe, [])
    with initialize_config_dir(str(recipe.folder), version_base=None):
        assert composed == compose(recipe.name, overrides=recipe.hydra_overrides([]))


def test_bitsandbytes_does_not_warn_before_the_problems_of_a_recipe(caplog):
    compose_recipe(Recipe.find("rag_r1/grpo"), [])
    logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load a kernel")
    assert caplog.messages == []


@pytest.mark.slow
def test_of_several_overrides_of_a_key_the_wrong_one_is_named_and_told_once():
    folder = "trainer.default_local_dir"
    overrides = ["platform=cpu_packed", "platform=", f"{folder}=/x", f"~{folder}"]
    config, problems = compose_valid(Recipe.find("rag_r1/grpo"), overrides)
    assert sorted(problem.where for problem in problems) == ["platform", folder]
    assert "''" in problems[0].what + problems[1].what and config.trainer.device == "cpu"


@pytest.mark.slow
def test_a_key_of_a_block_that_is_empty_is_to_be_added():
    _, (problem,) = compose_valid(Recipe.find("demo/ppo_mq"), ["rag_r1.validation_agent.max_turns=5"])
    assert problem.remedy == "add it: +rag_r1.validation_agent.max_turns=VALUE"


@pytest.mark.slow
def test_wrong_keys_in_lists_in_values_and_given_twice_are_named_once():
    _, [fault] = compose_valid(Recipe.find("rag_r1/grpo"), ["rag_r1.reward={term: em}"])
    assert fault.where == "rag_r1.reward" and "is a list" in fault.what
    wrong = ["rag_r1.reward.em.weight=1", "rag_r1.reward.0.nope=1", "trainer={v1: {nope: 2}}", "=3"]
    _, problems = compose_valid(Recipe.find("rag_r1/grpo"), [*wrong, wrong[1]])
    named = {problem.where: f"{problem.what}: {problem.remedy}" for problem in problems}
    assert len(problems) == 4 and "rag_r1.reward is a list of 1" in named["rag_r1.reward.em.weight"]
    assert "rag_r1.reward.0 has term, weight" in named["rag_r1.reward.0.nope"]
    assert "trainer.v1 has" in named["trainer.v1.nope"] and "not key=value" in named["=3"]
