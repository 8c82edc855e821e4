"""Where recipes are found, in a clone and in a wheel, by every form of their names; each can be built on."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from rag_r1.config import recipes as recipe_files
from rag_r1.config.recipes import RECIPES, Recipe, find_file, kind_of, shipped_names
from rag_r1.runs.errors import RunError
from rag_r1.training.command import main as train
from tests.recipes.composed_recipes import compose_quickly, user_values

README = RECIPES / "README.md"


def copy_of_the_module(package: Path) -> ModuleType:
    file = package / "config" / "recipes.py"
    file.parent.mkdir(parents=True)
    file.write_text(Path(recipe_files.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("copied_recipe_files", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("inside", [True, False], ids=["wheel", "clone"])
def test_the_recipes_lie_inside_the_package_in_a_wheel_and_beside_it_in_a_clone(
    tmp_path, inside, monkeypatch
):
    package = tmp_path / "lib" / "rag_r1"
    recipes = (package if inside else package.parent) / "recipes"
    module = copy_of_the_module(package)
    (recipes / "rag_r1").mkdir(parents=True)
    (recipes / "rag_r1_defaults.yaml").write_text("")
    (recipes / "rag_r1" / "mine.yaml").write_text("defaults: [/ppo_trainer]")
    assert module.recipes_folder() == recipes
    monkeypatch.setattr(module, "RECIPES", recipes)
    monkeypatch.chdir(tmp_path)
    for name in ("rag_r1/mine", "rag_r1/mine.yaml", "recipes/rag_r1/mine", "recipes/rag_r1/mine.yaml"):
        assert module.Recipe.find(name) == module.Recipe(recipes, "rag_r1/mine")
    assert module.shipped_names() == ["rag_r1/mine"]


def test_an_installation_without_recipes_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_files, "RECIPES", tmp_path / "none")
    with pytest.raises(RunError, match="has no recipes.*none is missing"):
        Recipe.find("rag_r1/grpo")
    assert shipped_names() == []


@pytest.mark.parametrize("folder", ["", "recipes/"])
@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_a_recipe_has_four_forms_of_its_name_wherever_it_is_asked_for(tmp_path, monkeypatch, folder, suffix):
    monkeypatch.chdir(tmp_path)
    assert Recipe.find(f"{folder}rag_r1/grpo{suffix}") == Recipe(RECIPES, "rag_r1/grpo")


def test_a_file_of_ones_own_comes_before_a_shipped_recipe_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rag_r1").mkdir()
    (tmp_path / "rag_r1" / "grpo.yaml").write_text("")
    assert Recipe.find("rag_r1/grpo").path == tmp_path / "rag_r1" / "grpo.yaml"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rag_r1/gpro", "rag_r1/grpo"),
        ("recipes/demo/pp_mq.yaml", "demo/ppo_mq"),
        ("grpo_lora", "agentic_rag/grpo_lora"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(name, nearest):
    with pytest.raises(RunError, match=rf"did you mean {nearest}\? `rag-r1 recipes`"):
        Recipe.find(name)


def test_a_file_that_is_no_yaml_is_no_recipe():
    with pytest.raises(RunError, match=r"run\.sh is not a recipe"):
        Recipe.find("r1_searcher/run.sh")
    assert find_file("r1_searcher/run.sh") == RECIPES / "r1_searcher" / "run.sh"


@pytest.mark.parametrize(
    "text",
    ["a: " + 100_000 * "[", "a: &a [1]\n" + "".join(f"b{i}: &b{i} [{'*a, ' * 50}]\n" for i in range(9000))],
)
def test_a_recipe_that_would_end_hydras_reader_is_refused_before(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(RunError, match="mine.yaml: it "):
        Recipe.find(tmp_path / "mine")


def test_each_recipe_is_of_the_command_that_takes_it_and_fragments_are_of_none(tmp_path):
    assert {kind: len(shipped_names(kind)) > 0 for kind in recipe_files.KINDS} == dict.fromkeys(
        recipe_files.KINDS, True
    )
    assert {"demo/ppo_sq", "rag_r1/grpo"} <= set(shipped_names("train"))  # the first by way of demo/_ppo
    assert shipped_names("sft") == ["rag_r1/sft/demo", "rag_r1/sft/qwen_7b", "real_small/sft"]
    for fragment in ("rag_r1/_common", "platform/cpu", "rag_r1_defaults", "rag_r1/sft/llama_factory"):
        assert kind_of(RECIPES / f"{fragment}.yaml") is None
    (tmp_path / "mine.yaml").write_text("defaults: 1")
    assert kind_of(tmp_path / "mine.yaml") is None


@pytest.mark.parametrize("path", RECIPES.rglob("*.yaml"), ids=lambda path: str(path.relative_to(RECIPES)))
def test_no_recipe_sets_a_search_path_which_hydra_allows_in_the_outermost_file_only(path):
    assert "searchpath" not in path.read_text(encoding="utf-8")


def plain(config) -> dict:
    return OmegaConf.to_container(config, resolve=False)


@pytest.mark.full
@pytest.mark.parametrize("name", shipped_names("train", "sft"))
def test_a_yaml_of_ones_own_builds_on_a_shipped_recipe_and_differs_in_what_it_changes(tmp_path, name):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"defaults: [{name}, _self_]\ntrainer: {{experiment_name: mine}}\n")
    shipped, built = plain(compose_quickly(name, [])), plain(compose_quickly(str(recipe), []))
    assert built["trainer"]["experiment_name"] == "mine" != shipped["trainer"]["experiment_name"]
    del built["trainer"]["experiment_name"], shipped["trainer"]["experiment_name"]
    assert built == shipped


@pytest.mark.slow
def test_a_yaml_of_ones_own_changes_a_group_of_the_recipe_that_it_builds_on(tmp_path, model_folder):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "# @package _global_\ndefaults: [rag_r1/grpo, override /platform: cpu, _self_]\n"
        "rag_r1: {agent: {max_turns: 2}}\n"
    )
    config = compose_quickly(str(recipe), user_values(model_folder))
    assert (config.trainer.device, config.rag_r1.agent.max_turns) == ("cpu", 2)
    assert config.algorithm.adv_estimator == "grpo" and config.rag_r1.protocol == "rag_r1_mq"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["the recipe", "an override"])
def test_a_search_path_of_ones_own_is_kept_beside_ours(tmp_path, place):
    """Also in the form that recipes had when each set its own."""
    fragments = tmp_path / "more fragments"
    fragments.mkdir()
    (fragments / "small.yaml").write_text("# @package _global_\ntrainer: {experiment_name: small}\n")
    entries = ["pkg://verl.trainer.config", f"file://{fragments}"]
    block = f"hydra: {{searchpath: {entries!r}}}\n" if place == "the recipe" else ""
    (tmp_path / "mine.yaml").write_text(f"{block}defaults: [/rag_r1/grpo, /small, _self_]\n")
    overrides = [] if block else [f'hydra.searchpath=["{entries[1]}"]']
    recipe = Recipe.find(tmp_path / "mine")
    assert compose_quickly(str(recipe.path), overrides).trainer.experiment_name == "small"
    assert sum(word.startswith("hydra.searchpath=") for word in recipe.command(overrides)) == 1


def test_of_two_search_paths_of_ones_own_the_last_one_counts():
    overrides = [f"hydra.searchpath=[file:///{name}]" for name in ("first", "last")]
    [searchpath] = Recipe.find("rag_r1/grpo").hydra_overrides(overrides)
    assert "file:///last" in searchpath and "file:///first" not in searchpath


@pytest.mark.parametrize("place", ["the recipe", "an override"])
def test_a_search_path_that_is_no_list_is_refused(tmp_path, place):
    block = "hydra: {searchpath: mine}\n" if place == "the recipe" else ""
    (tmp_path / "mine.yaml").write_text(f"{block}defaults: [/rag_r1/grpo, _self_]\n")
    with pytest.raises(RunError, match="mine: hydra.searchpath must be a list of folders, not 'mine'"):
        Recipe.find(tmp_path / "mine").hydra_overrides([] if block else ["hydra.searchpath=mine"])


@pytest.mark.slow
def test_the_documented_line_composes_a_recipe_with_verls_command_alone(tmp_path):
    line = re.search(r"^(python -m verl\.trainer\.main_ppo .*)$", README.read_text(encoding="utf-8"), re.M)[1]
    line = line.replace("$(rag-r1 recipes path)", f"$({sys.executable} -m rag_r1.cli recipes path)")
    line = line.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    done = subprocess.run(
        ["bash", "-c", f"{line} --cfg job"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    config = OmegaConf.create(done.stdout)
    assert config.rag_r1.protocol == "rag_r1_mq" and config.algorithm.adv_estimator == "grpo"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("rag_r1/sft/demo", "take `rag-r1 sft`"),
        ("platform/cpu", "begin its defaults with - /ppo_trainer, or with a shipped recipe"),
    ],
)
def test_what_is_no_recipe_for_a_training_is_refused_with_the_right_command(capsys, name, remedy):
    assert train(["--recipe", name, "--check-only"]) == 1
    assert f"{name} is not a recipe for `rag-r1 train`: {remedy}" in capsys.readouterr().err


def test_a_recipe_that_is_built_on_itself_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "nope.yaml").write_text("# @package _global_\ndefaults: [nope, _self_]\n")
    monkeypatch.chdir(tmp_path)
    assert train(["--recipe", "nope.yaml", "--check-only"]) == 1
    _, line = capsys.readouterr().err.splitlines()
    assert "nope.yaml: its defaults list leads back to itself" in line
