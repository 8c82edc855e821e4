"""Recipes of `rag-r1 retriever train`: their keys are options, and the command line comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.config.recipes import RecipeError
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.command_line import read_arguments
from rag_r1.retriever.training.options import TrainOptions, read_recipe, split_recipe

RECIPES = sorted((Path(__file__).parents[3] / "recipes" / "agentic_r").glob("retriever_*.yaml"))
REQUIRED = ["--rows", "r.jsonl", "--corpus", "c.jsonl", "--out", "o"]


def read(*arguments: str) -> TrainOptions:
    words, settings, faults, _ = split_recipe(arguments, "rag-r1 retriever train")
    return read_arguments(TrainOptions, words, description="", settings=settings, faults=faults)


def test_the_recipe_of_the_paper_has_its_numbers():
    options = read("--recipe", str(next(path for path in RECIPES if "gpu" in path.name)), *REQUIRED)
    assert options.model == "intfloat/e5-base-v2" and options.encoder == {
        "pooling": "mean",
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
        "separator": None,
        "max_length": 512,
        "mode": "agentic",
    }
    assert (options.temperature, options.negatives, options.batch_size, options.epochs) == (
        0.01,
        15,
        256,
        2.0,
    )
    assert (options.learning_rate, options.warmup, options.precision) == (2e-5, 0.1, "fp16")
    assert (options.lora, options.lora_rank, options.lora_alpha, options.lora_dropout) == (False, 16, 64, 0.1)


def test_all_recipes_are_there_and_can_be_read():
    assert [path.stem for path in RECIPES] == ["retriever_cpu", "retriever_demo", "retriever_gpu"]
    for path in RECIPES:
        assert read(f"--recipe={path}", "--model=m", *REQUIRED).mode == "agentic"


def test_the_command_line_comes_before_the_recipe(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("model: a\nepochs: 3\nlora: true\nlogger: [console, file]\nseparator: null\nseed: 7\n")
    options = read("--recipe", str(recipe), "--epochs=1", "--logger", "tensorboard", *REQUIRED)
    assert (options.epochs, options.seed, options.lora, options.separator) == (1.0, 7, True, None)
    assert options.logger == ["tensorboard"]


def test_a_flag_of_a_recipe_can_be_switched_off(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("model: a\nlora: true\ngradient_checkpointing: true\n")
    options = read("--recipe", str(recipe), "--no-lora", *REQUIRED)
    assert (options.lora, options.gradient_checkpointing) == (False, True)
    assert read(*REQUIRED, "--model", "a", "--no-lora").lora is False
    # A flag whose own name begins so is no negation.
    assert read(*REQUIRED, "--model", "a", "--no-progress").no_progress is True


def test_how_a_sum_is_computed_does_not_decide_whether_a_training_goes_on():
    options = [*REQUIRED, "--model", "a"]
    other = read(*options, "--mini-batch", "8", "--gradient-checkpointing", "--device", "cpu")
    assert (
        other.result_settings
        == read(*options).result_settings
        != read(*options, "--epochs", "1").result_settings
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch: 3\nmodel: a\nx: 1\n", "unknown key epoch: .*unknown key x"),
        ("temperature: -1\nseed: -1\n", "temperature: must be a number above 0, not '-1'.*seed: must be"),
        ("recipe: other.yaml\n", "unknown key recipe"),
        ('model: ""\n', "model: must be a text that is not empty"),
        ("[1]", "must be a mapping"),
        ("a: [", "cannot be read"),
        (None, "rag-r1 recipes"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_named(tmp_path, text, words):
    recipe = tmp_path / "own.yaml"
    if text is not None:
        recipe.write_text(text)
    with pytest.raises(RecipeError, match=f"own.yaml.*{words}"):
        read_recipe(str(recipe))


@pytest.mark.parametrize(("name", "command"), [("demo/grpo", "train"), ("rag_r1/sft/demo", "sft")])
def test_of_the_recipe_of_another_command_that_command_is_named(name, command):
    with pytest.raises(RecipeError, match=f"take `rag-r1 {command}`"):
        read_recipe(name)


def test_a_file_of_settings_may_name_the_recipe_and_replaces_its_options(tmp_path):
    (tmp_path / "own.yaml").write_text("model: a\nepochs: 3\nseed: 7\n")
    settings = tmp_path / "run.yaml"
    settings.write_text(f"recipe: {tmp_path / 'own.yaml'}\nepochs: 2\nmodel: b\n")
    options = read(f"@{settings}", *REQUIRED, "--model", "c")
    assert (options.model, options.epochs, options.seed) == ("c", 2.0, 7)


def test_a_loss_on_the_order_needs_two_negatives():
    with pytest.raises(ArgumentsError, match="--rank-weight needs --negatives of at least 2"):
        TrainOptions(rows=["r"], corpus=["c"], out="o", model="a", rank_weight=0.5, negatives=1)
