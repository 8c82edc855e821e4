"""Which recipes a plan gets that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.own import sizes
from rag_r1.own.plan_file import read_plan
from rag_r1.own.sizes import SIZES, size_of, with_recipes


def model(folder: Path, weights: int) -> str:
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(weights)  # a hole, not bytes
    return str(folder)


def plan_for(name: str, platform: str | None = None, **sections):
    return with_recipes(read_plan(None, {"policy": {"model": name, "platform": platform}, **sections}))


def test_a_model_has_the_size_of_its_weights(tmp_path):
    bounds = [size.below_bytes for size in SIZES[:-1]]
    assert size_of(str(policy_path("rag_r1_mq"))).name == "tiny"
    for number, bound in enumerate(bounds):
        assert size_of(model(tmp_path / f"below{number}", int(bound) - 1)) is SIZES[number]
        assert size_of(model(tmp_path / f"at{number}", int(bound))) is SIZES[number + 1]
    with (tmp_path / "below1" / "pytorch_model.bin").open("wb") as copy:
        copy.truncate(int(bounds[1]))
    assert size_of(str(tmp_path / "below1")) is SIZES[1], "the same weights in two formats"
    assert size_of("owner/name") is SIZES[-1], "one that is not here yet"


def test_every_size_names_shipped_recipes_and_prompts():
    for size in SIZES:
        assert Recipe.find(size.sft) and Recipe.find(size.grpo)
        assert all((sizes.RECIPES / name).is_file() for name in size.prompts or ())


@pytest.mark.parametrize(
    ("weights", "platform", "changes", "prompt"),
    [
        (1, "cpu", [], False),
        (100 << 20, "cpu", [], True),
        (100 << 20, "gpu", ["platform=gpu_sdpa", *sizes._GRPO_ON_A_GPU], True),
        (3 << 30, "gpu", [], False),
        (3 << 30, "gpu_sdpa", ["platform=gpu_sdpa"], False),
    ],
)
def test_the_recipe_gets_the_platform_if_that_is_not_its_own(tmp_path, weights, platform, changes, prompt):
    plan = plan_for(model(tmp_path / "model", weights), platform)
    assert list(plan.grpo.overrides) == changes
    assert (plan.policy.prompt is not None) == prompt == (plan.evaluation.one_shot_prompt is not None)


def test_what_the_plan_names_stays_and_is_not_changed_again(tmp_path):
    name = model(tmp_path / "model", 100 << 20)
    chosen = {"grpo": {"recipe": "mine.yaml", "overrides": ["a=1"]}, "sft": {"recipe": "other.yaml"}}
    plan = plan_for(name, "gpu_sdpa", **chosen)
    assert (plan.grpo.recipe, plan.grpo.overrides, plan.sft.recipe) == ("mine.yaml", ("a=1",), "other.yaml")
    assert plan.policy.prompt is None, "the prompt is for the shipped recipe"
    once = plan_for(name, "gpu", grpo={"overrides": ["a=1"]})
    assert with_recipes(once) == once and once.grpo.overrides[-1] == "a=1"
