"""Defines the options of `rag-r1 retriever train`, which come from flags and from recipes.

A recipe is a YAML file whose keys are the options:

    # the recipe agentic_r/retriever_gpu
    model: intfloat/e5-base-v2
    query_prefix: "query: "
    batch_size: 256

An option on the command line replaces that of the recipe; `--no-lora` means `lora: false`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rag_r1.config.recipes import RecipeError, fault_of_kind, find_file
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.command_line import Above0, Arguments, Filled, From0, Positive, argument
from rag_r1.options.settings_file import SettingsError, SplitWords, read_settings, split_files
from rag_r1.options.types import Constraint
from rag_r1.protocols.retriever_query import Mode
from rag_r1.runs.start_checks import CHECK_ONLY

Fraction = Annotated[float, Field(ge=0, lt=1), Constraint("a number from 0 to below 1")]
#: numpy takes no other seeds.
Seed = Annotated[int, Field(ge=0, lt=1 << 32), Constraint("a whole number from 0 to 4294967295")]
#: The end of the help of each setting of the encoder.
_INHERITED = "(default: the index's, else the model's)"
Logger = Literal["console", "file", "wandb", "tensorboard", "mlflow", "swanlab", "trackio", "clearml"]


class TrainOptions(Arguments):
    """The options that name the encoder and its training rows, and the settings of the training."""

    rows: list[Path] = argument("training rows, as `rag-r1 retriever data` writes them", ("FILE", ...))
    corpus: list[Path] = argument(
        "texts of the rows' passages: .jsonl, .tsv (each plain or .gz), .parquet, a folder, or an index",
        ("PATH", ...),
    )
    out: Path = argument("folder of the run; run again, the command goes on where it was interrupted", "DIR")
    recipe: Path | None = argument(
        "a shipped recipe, e.g. agentic_r/retriever_gpu, or a YAML file with options; flags of the command "
        "line replace its values, and --no-lora and the like switch its flags off",
        "RECIPE",
        default=None,
    )

    model: Filled = argument("encoder: a folder, a name on the Hugging Face Hub, or minilm", "NAME")
    index: Path | None = argument("index whose manifest has the encoder's settings", "DIR", default=None)
    pooling: Literal["mean", "cls", "lasttoken", "max"] | None = argument(
        f"pooling of the encoder {_INHERITED}", "{mean,cls,lasttoken,max}", default=None
    )
    query_prefix: str | None = argument(f"text before each query {_INHERITED}", "TEXT", default=None)
    passage_prefix: str | None = argument(f"text before each passage {_INHERITED}", "TEXT", default=None)
    separator: str | None = argument(f"text between parts of a query {_INHERITED}", "TEXT", default=None)
    max_length: Annotated[int, Field(ge=8), Constraint("a whole number of at least 8")] | None = argument(
        "most tokens of a query and of a passage (default: the index's, else the model's, at most 512)",
        "N",
        default=None,
    )
    mode: Mode | None = argument(
        "text that a query is sent with: the question (agentic), also earlier queries (history), the "
        "thought (reasoning), or none (plain) (default: the index's, else the model's, else agentic)",
        "{agentic,history,reasoning,plain}",
        default=None,
    )

    temperature: Above0 = argument("temperature of InfoNCE", "T", default=0.01)
    negatives: Positive = argument("hard negatives of a row", "N", default=15)
    rank_weight: From0 = argument("weight of the loss on the order by relevance (LR)", "W", default=0.0)
    rank_temperature: Above0 = argument("temperature of LR in the loss on the order", "T", default=0.1)

    epochs: Above0 = argument("passes over the rows", "N", default=2.0)
    batch_size: Positive = argument("rows of a step on all devices together", "N", default=256)
    mini_batch: Positive | None = argument(
        "texts that are in the model at once: saves memory, costs a second pass (default: all)",
        "N",
        default=None,
    )
    learning_rate: Above0 = argument("highest learning rate", "LR", default=2e-5)
    warmup: Fraction = argument("share of the steps in which the learning rate rises", "SHARE", default=0.1)
    weight_decay: From0 = argument("weight decay of AdamW", "W", default=0.0)
    lora: bool = argument("train low-rank adapters, which are put into the weights at the end", default=False)
    lora_rank: Positive = argument("rank of the adapters", "R", default=16)
    lora_alpha: Positive = argument("scale of the adapters (LoRA's alpha)", "A", default=64)
    lora_dropout: Fraction = argument("dropout of the adapters", "P", default=0.1)
    average_weights: Annotated[float, Field(gt=0, le=1), Constraint("a number above 0, to 1")] = argument(
        "share of the trained weights in the saved model; the rest are those before the training, "
        "so that the model forgets less (arXiv 2109.01903)",
        "SHARE",
        default=1.0,
    )
    precision: Literal["fp32", "bf16", "fp16"] = argument("number format of the computation", default="fp32")
    gradient_checkpointing: bool = argument("save memory by computing activations twice", default=False)
    device: Literal["cpu", "auto"] = argument("the CPU, or (auto) an accelerator if any", default="auto")
    seed: Seed = argument("seed of all random draws", default=0)

    save_steps: Positive = argument("steps between two checkpoints", "N", default=100)
    logging_steps: Positive = argument("steps between two lines of the log", "N", default=10)
    logger: list[Logger] = argument("one of veRL's loggers; may be repeated", "NAME", default=["console"])
    project_name: str = argument("project in the loggers", "NAME", default="retriever")
    experiment_name: str | None = argument("run in the loggers (default: as --out)", "NAME", default=None)
    no_progress: bool = argument("show no progress bar", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _rank_loss_needs_an_order(self) -> TrainOptions:
        if self.rank_weight and self.negatives < 2:
            raise ValueError("--rank-weight needs --negatives of at least 2")
        return self

    @property
    def encoder(self) -> dict[str, Any]:
        """The options that are settings of the encoder, by name; an option that is not set is None."""
        names = {"pooling", "query_prefix", "passage_prefix", "separator", "max_length", "mode"}
        return self.model_dump(include=names)

    @property
    def result_settings(self) -> dict[str, Any]:
        """The options on which the trained model depends, without those that name the encoder and the data,
        whose settings and fingerprint a run compares instead. The other excluded ones only decide where and
        in which pieces the same computation runs, and may change when a training is resumed."""
        excluded = {"rows", "corpus", "out", "recipe", "index", "save_steps", "logging_steps", "logger"}
        excluded |= {"project_name", "experiment_name", "no_progress", "check_only", *self.encoder}
        excluded |= {"mini_batch", "gradient_checkpointing", "device"}
        return {name: value for name, value in self.model_dump().items() if name not in excluded}


def split_recipe(arguments: Sequence[str], prog: str) -> SplitWords:
    """Read the settings files and the recipe that a command line names, and return their settings, which
    include those of the recipe, apart from the other words. The settings of the files take precedence over
    the recipe's. A `--recipe` without a value ends the process with a message."""
    split = split_files(arguments, TrainOptions, prog)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog=prog)
    parser.add_argument("--recipe", default=split.settings.get("recipe"))
    recipe = parser.parse_known_args(split.words)[0].recipe
    if recipe is not None:
        try:
            return split._replace(settings=read_recipe(recipe) | split.settings)
        except RecipeError as error:
            split.faults.append(str(error))
    return split


def read_recipe(name: str) -> dict[str, Any]:
    """Return the options in a shipped recipe or a file. Raises RecipeError if the file cannot be read, for
    the recipe of another command, and for unknown keys and wrong values."""
    path = find_file(name, ".yaml")
    try:
        options = read_settings(path, TrainOptions)
    except ArgumentsError as error:
        fault = fault_of_kind(path, "retriever") if isinstance(error, SettingsError) else None
        raise RecipeError(f"--recipe {fault or error}") from error
    if "recipe" in options:
        raise RecipeError(f"--recipe {path}: unknown key recipe: a recipe has none of its own")
    return options
