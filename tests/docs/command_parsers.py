"""Checks a command of a page without running it: its program, its options, its overrides and its files.

The command's own `main` is called, and is left as soon as its parser has accepted the words. What a
training's overrides make of its recipe is composed, as `rag-r1 train` does it. Programs of others are known
by name; their options are not checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from omegaconf import OmegaConf

import retrieval_server.command_line
from rag_r1 import cli
from rag_r1.config.recipes import Recipe
from rag_r1.options import command_line
from rag_r1.options.arguments.parser import CommandParser
from rag_r1.serving.mcp import listing as mcp_listing
from rag_r1.training.stages import stage_overrides
from tests.docs.fences import ROOT, lines_of, words_of
from tests.recipes.composed_recipes import compose_quickly

#: The scripts that name a recipe of their own.
RECIPES = {
    "train_ppo.sh": "rag_r1/ppo_sq",
    "train_ppo_mq.sh": "rag_r1/ppo_mq",
    "train_grpo.sh": "rag_r1/grpo",
    "recipes/rag_r1/sft/run.sh": "rag_r1/sft/qwen_7b",
}
#: Programs of others, and what a shell has itself.
OTHERS = {"cat", "curl", "export", "git", "hf", "llamafactory-cli", "openssl", "sed", "vllm", "wget"}
#: What `rag-r1 eval` may be followed by in place of a run.
EVAL_COMMANDS = ("compare", "groups", "modes", "report", "sigma")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")


class Accepted(BaseException):
    """Raised with the values when a parser has accepted its words; no command handles it."""

    def __init__(self, values: Any):
        super().__init__()
        self.values = values


@contextmanager
def parsing_only() -> Iterator[None]:
    """Every parser, ours or argparse's, raises Accepted instead of returning."""

    def stop(read: Callable[..., Any], returns: Callable[..., bool] = lambda *_: False) -> Callable[..., Any]:
        def reading(*args: Any, **kwargs: Any) -> Any:
            values = read(*args, **kwargs)
            if returns(*args):
                return values
            raise Accepted(values)

        return reading

    options = retrieval_server.command_line.Options
    validate = options.model_validate.__func__
    is_inner = lambda parser, *_: type(parser) is retrieval_server.command_line._Parser  # noqa: E731
    started = AssertionError("the command starts a process before it reads its arguments")
    with (
        patch.object(command_line.CliApp, "run", staticmethod(stop(command_line.CliApp.run))),
        patch.object(options, "model_validate", classmethod(stop(validate))),
        patch.object(
            argparse.ArgumentParser, "parse_args", stop(argparse.ArgumentParser.parse_args, is_inner)
        ),
        patch.object(CommandParser, "parse_args", stop(CommandParser.parse_args)),
        patch.object(mcp_listing, "_tools_of", stop(lambda options: options)),
        patch.object(subprocess.Popen, "__init__", side_effect=started),
    ):
        yield


def accepted(main: Callable[[], Any]) -> Any:
    """The values that a command's parser has made of its words. A word that does not fit ends the process
    (SystemExit, status 2)."""
    try:
        with parsing_only():
            main()
    except Accepted as end:
        return end.values
    raise AssertionError("the command read no arguments")


def check_block(text: str, folder: Path) -> None:
    """Check the commands of a shell block from `folder`, which has the files that the page shows."""
    variables: dict[str, str] = {}
    for line in lines_of(text):
        for name, value in variables.items():
            line = line.replace(f"${name} ", f"{value} ")
        words = [word for word in words_of(_SUBSTITUTION.sub("1", line)) if word != "&"]
        if len(words) == 1 and _ASSIGNMENT.match(words[0]):
            name, _, variables[name] = words[0].partition("=")
        else:
            check_command(words, folder)


def check_command(words: Sequence[str], folder: Path) -> None:
    """Check one command. Raises AssertionError, or ends the process as the command would."""
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    assert "..." not in words, f"not a whole command: {' '.join(words)}"
    program, *rest = words
    if program == "rag-r1":
        check_rag_r1(rest, folder)
    elif program in ("python", "bash", "sbatch", "pip"):
        {"python": check_python, "bash": check_script, "sbatch": check_sbatch, "pip": check_pip}[program](
            rest
        )
    else:
        assert program in OTHERS, f"an unknown program: {program}"
    if "curl" in words:
        json.loads(words[words.index("-d") + 1])


def check_rag_r1(words: list[str], folder: Path) -> None:
    """A command of ours, its recipe and its overrides."""
    command = words[0]
    if command == "eval" and words[1][0] not in "-@" and words[1] not in EVAL_COMMANDS:
        words = [
            "eval",
            "--model",
            *words[1:],
            "--questions",
            "test.parquet",
        ]  # the run's settings have these
        words += [] if "--out" in words else ["--out", "evals/run"]
    with chdir(folder), patch.dict(os.environ, HOME=str(folder)):
        words = [os.path.expanduser(word) for word in words]
        make_inputs(words)
        values = accepted(lambda: cli.main(words))
        overrides = [word for word in getattr(values, "overrides", []) if "=" in word]
        recipe = getattr(values, "recipe", None)
        if command in ("train", "sft") or (command == "recipes" and recipe):
            compose_quickly(recipe, overrides)
        elif command == "demo":
            compose_quickly(f"demo/{recipe}", overrides)
        elif command == "stages":
            for number, name in enumerate(recipe, 1):
                compose_quickly(name, stage_overrides(overrides, number, folder, None))
        else:
            assert [word for word in overrides if not is_key(word)] == []
        if recipe and command in ("iterate", "retriever"):
            Recipe.find(str(recipe))


def make_inputs(words: Sequence[str]) -> None:
    """Make the files and folders that a parser looks for itself."""
    for flag, word in pairwise(words):
        if word[0] == "@" and not Path(word[1:]).exists():
            Path(word[1:]).parent.mkdir(parents=True, exist_ok=True)
            Path(word[1:]).write_text("model: m\nquestions: [q.jsonl]\n")
        elif flag == "--documents":
            Path(word).mkdir(parents=True, exist_ok=True)


def is_key(override: str) -> bool:
    """Is it one of the keys under `rag_r1`?"""
    parent, _, name = override.lstrip("+").partition("=")[0].rpartition(".")
    return name in (OmegaConf.select(_config(), parent) or {})


@cache
def _config() -> Any:
    return compose_quickly("rag_r1/ppo_mq", [])


def check_python(words: list[str]) -> None:
    """A script of ours, or a module."""
    if words[0] != "-m":
        script = ROOT / words[0]
        with patch.object(sys, "path", [str(script.parent), *sys.path]):
            check_options(words, lambda: runpy.run_path(str(script), run_name="__main__"))
    elif words[1] == "pytest":
        assert all((ROOT / word).exists() for word in words[2:] if word.startswith("tests"))
    elif words[1] == "verl.trainer.main_ppo":
        assert is_module(words[1])  # Hydra reads its words
    else:
        check_options(words[1:], lambda: runpy.run_module(words[1], run_name="__main__", alter_sys=True))


def check_options(argv: list[str], main: Callable[[], Any]) -> None:
    with patch.object(sys, "argv", argv), patch.object(sys, "path", [str(ROOT), *sys.path]):
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it is imported already
            accepted(main)


def is_module(name: str) -> bool:
    """Can ``python -m`` run it? Looked up in the files: to import veRL takes long."""
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    places = [Path(place).joinpath(*rest) for place in spec.submodule_search_locations or []] if spec else []
    return any((place / "__main__.py").is_file() or place.with_suffix(".py").is_file() for place in places)


def check_script(words: list[str]) -> None:
    """A shell script of ours; those that train get overrides."""
    script, *rest = words
    assert (ROOT / script).is_file(), script
    if script in RECIPES:
        compose_quickly(RECIPES[script], [word for word in rest if "=" in word and word[:2] != "--"])
    elif script == "recipes/smoke/run.sh":
        check_python(["recipes/smoke/run.py", *rest])


def check_sbatch(words: list[str]) -> None:
    assert (ROOT / words[0]).is_file(), words[0]
    check_script(words[1:])


def check_pip(words: list[str]) -> None:
    """The extras are ours."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for word in words:
        for found in re.findall(r"^(?:rag-r1|\.)\[([\w,-]+)\]", word):
            assert set(found.split(",")) <= set(extras), word
