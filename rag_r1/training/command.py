"""`rag-r1 train`: composes a recipe, runs the preflight and starts veRL's trainer.

There is no trainer here. The recipe and the `key=value` overrides are Hydra's and are passed unchanged to
`python -m verl.trainer.main_ppo`; this command only checks them first, and prints the next steps at the end
(launch.py). A user's own files and modules are searched for in the folder from which the command is started.
Ray's workers may run in another folder, so relative names of existing files are passed on as absolute paths.

Your own recipe may be anywhere and may build on a shipped one (`defaults: [rag_r1/grpo, _self_]`) or on the
fragments of which these are made (`- /rag_r1_defaults`, `- /platform: cpu`): see rag_r1/config/recipes.py.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import KINDS, QUOTING, UNREADABLE, Recipe, kind_of, shipped_names
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Overrides, argument, hydra_quoted, read_arguments
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.problems import PreflightReport, error, print_report
from rag_r1.options.settings_file import recorded_settings
from rag_r1.options.suggestions import did_you_mean
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartError
from rag_r1.training.added_overrides import added_overrides, vllm_threads
from rag_r1.training.metrics_files import metrics_file, metrics_override
from rag_r1.training.time_limit import Hours, check_resume

#: Keys whose values may be the user's files or folders.
_PATHS = (
    "rag_r1.protocol",
    "rag_r1.prompt",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "data.train_files",
    "data.val_files",
)
#: What veRL's ppo_trainer has at the top.
_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "trainer")
_DESCRIPTION = """\
Train with a recipe. Checks first what can be checked without a GPU (configuration, model, data, retrieval
server), reports all problems at once, and then runs veRL: python -m verl.trainer.main_ppo with the same
recipe and overrides.

example:
  rag-r1 train --recipe rag_r1/ppo_mq \\
      actor_rollout_ref.model.path=/models/qwen \\
      data.train_files=/data/train.parquet data.val_files=/data/test.parquet \\
      rag_r1.retriever.url=http://127.0.0.1:8000 trainer.total_training_steps=10
"""


def compose_recipe(recipe: Recipe, overrides: Sequence[str]):
    """The whole configuration, as veRL will see it. Raises RunError naming the key or file, also for a
    variable of the environment that the block `rag_r1` takes a value from and that is not set."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    # The checks import veRL, and with it bitsandbytes, which warns of kernels that no check runs.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(recipe.folder), version_base=None):
            config = compose(recipe.name, overrides=recipe.to_compose(overrides))
        if config.get("rag_r1") is not None:
            OmegaConf.to_container(config.rag_r1, resolve=True)
        return config
    except RecursionError as error:
        reason = "its defaults list leads back to itself, or its values are nested too deep"
        raise RunError(f"{recipe.path}: {reason}: name what it builds on, e.g. rag_r1/grpo") from error
    except YAMLError as error:
        raise RunError(_yaml_fault(recipe, error)) from error
    except MissingConfigException as error:
        missing = str(error.missing_cfg_file or "?").removesuffix(".yaml")
        hint = did_you_mean(missing.strip("/"), shipped_names()) or "correct its defaults list"
        raise RunError(f"{recipe.name} is built on {missing!r}, which is not there: {hint}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise RunError(f"{recipe.name}: {error}") from error


def _yaml_fault(recipe: Recipe, error: Exception) -> str:
    """What is wrong with the YAML of a recipe, or of a file that it is built on."""
    mark = getattr(error, "problem_mark", None)
    location = f"{mark.name}, line {mark.line + 1}" if mark is not None else str(recipe.path)
    return f"{location}: no YAML ({getattr(error, 'problem', None) or error}): correct it"


def check_training(recipe: Recipe, config: Any) -> None:
    """Raises RunError unless a composed recipe is one for reinforcement learning, as a whole."""
    if any(section not in config for section in _SECTIONS):
        kind = kind_of(recipe.path) or "train"
        of_training = "begin its defaults with - /ppo_trainer, or with a shipped recipe"
        remedy = of_training if kind == "train" else f"take `{KINDS[kind]}`"
        raise RunError(f"{recipe.name} is no recipe for `rag-r1 train`: {remedy}")


def compose_valid(recipe: Recipe, overrides: Sequence[str]):
    """The configuration without the wrong overrides, and for each of these its key, what is wrong and the
    remedy, so that the rest can be checked too. Raises RunError if the fault is not in an override."""
    valid, faults = list(overrides), []
    while True:
        try:
            config = compose_recipe(recipe, valid)
        except RunError as error:
            culprit = next((override for override in valid if _is_at_fault(override, error.__cause__)), None)
            if culprit is None:
                raise
            valid.remove(culprit)
            faults.append((culprit, error.__cause__))
        else:
            return config, [_override_fault(config, *fault) for fault in faults]


def check_composition(recipe: Recipe, overrides: Sequence[str]) -> Any:
    """The whole configuration. Raises StartError with all wrong overrides of a recipe, or RunError if it does
    not compose without them."""
    config, faults = compose_valid(recipe, overrides)
    if faults:
        raise StartError([f"{key}: {wrong}: {remedy}" for key, wrong, remedy in faults])
    return config


def _is_at_fault(override: str, error: BaseException | None) -> bool:
    """Whether Hydra's error is about this override: it names the override, its key or its group's file."""
    key, _, value = override.lstrip("+~").partition("=")
    if getattr(error, "override", None) == override:
        return True
    quotations = (f"'{key}'", f"'{key}/{value}'", f"/{key}/{value}'", override)  # the third: + and a group
    return any(name in str(error) for name in quotations)


def _override_fault(config: Any, override: str, error: BaseException) -> tuple[str, str, str]:
    from hydra.errors import OverrideParseException
    from omegaconf import OmegaConf

    key, message = override.lstrip("+~").partition("=")[0], str(error)
    if isinstance(error, OverrideParseException):
        return key, f"{override!r} {UNREADABLE}", QUOTING
    if key == "preset" and override.startswith("+"):
        return key, "Hydra looks for what + adds beside the recipe", f"write {override.lstrip('+')}"
    if key == "preset" and "Could not override" in message:
        entries = f"[the recipe, /preset: {override.partition('=')[2]}, _self_]"
        return key, "this recipe has no room for a preset", f"in a file of your own: defaults: {entries}"
    node, path, names = config, [], key.split(".")
    while len(names) > 1 and OmegaConf.is_dict(node) and names[0] in node:
        node = node.get(names[0])
        path.append(names.pop(0))
    if "Could not override" in message and OmegaConf.is_dict(node):
        matches = get_close_matches(names[0], map(str, node), n=1)
        hint = f"did you mean {'.'.join([*path, matches[0], *names[1:]])}? " if matches else ""
        keys = f"{'.'.join(path) or 'the configuration'} has {', '.join(map(str, node))}"
        return key, "there is no such key", f"{hint}{keys}"
    if "Could not override" in message:
        return key, "there is no such key", f"{'.'.join(path)} is a value, and has no keys"
    return key, " ".join(message.split()), "correct the override"


def absolute_paths(config: Any) -> list[str]:
    """Overrides that replace relative paths of files and folders, and those with `~`, by absolute ones."""
    from omegaconf import ListConfig, OmegaConf

    def absolute(key: str, name: str) -> str:
        # The name of a shipped protocol is not a path, even if there is a folder of that name.
        is_file = key != "rag_r1.protocol" or name.endswith((".yaml", ".yml"))
        path = Path(name).expanduser()
        return str(path.absolute()) if is_file and path.exists() else name

    overrides = []
    for key in _PATHS:
        value = OmegaConf.select(config, key, throw_on_missing=False)
        names = list(value) if isinstance(value, ListConfig) else [value]
        if not all(isinstance(name, str) for name in names):
            continue
        if (paths := [absolute(key, name) for name in names]) != names:
            quoted = ",".join(map(hydra_quoted, paths))
            overrides.append(f"{key}={quoted if isinstance(value, str) else f'[{quoted}]'}")
    return overrides


class TrainArguments(Arguments):
    """A recipe and what is changed in it."""

    recipe: str = argument("a shipped recipe (`rag-r1 recipes`), e.g. rag_r1/grpo, or a YAML file", "RECIPE")
    check_only: bool = argument("run the checks and stop", default=False)
    estimate: bool = argument(
        "run the checks, measure for a minute how long a step takes on this CPU, and stop", default=False
    )
    leave_model: bool = argument(
        "refuse settings with which the training leaves no model, as rag-r1 stages does", default=False
    )
    hours: Hours | None = argument(
        "end after so many hours at most, with a checkpoint; the same command goes on", "H", default=None
    )
    supervise: bool = argument(
        "go back to a good checkpoint when it goes wrong, and start again after a crash", default=False
    )
    overrides: Overrides = argument("any key of veRL or of `rag_r1:`", "key=value", default=[])


def _check_recipe(args: TrainArguments) -> tuple[Recipe, Any, PreflightReport]:
    """The recipe, its configuration, and what the preflight finds. Raises RunError."""
    add_working_directory()
    recipe = Recipe.find(args.recipe)
    config, faults = compose_valid(recipe, args.overrides)
    check_training(recipe, config)
    if config.trainer.get("device") == "cpu":
        # veRL checks for nvidia-smi: on a machine with GPUs it would choose cuda.
        os.environ["VERL_PLATFORM"] = "cpu"
    from rag_r1.training.guard.supervisor import check_supervision
    from rag_r1.training.preflight import preflight
    from rag_r1.training.preflight.settings import check_export

    report = preflight(config)
    report.problems[:0] = [error(*fault) for fault in faults]
    if args.leave_model:
        report.problems += check_export(config)
    if args.supervise:
        report.problems += check_supervision(config)
    elif args.hours is not None:
        report.problems += check_resume(config)
    if config.trainer.get("device") == "cpu" and not report.errors:
        report.notes.append(f"threads of vLLM: {vllm_threads(config)}")
    return recipe, config, report


def _check_start(args: TrainArguments) -> None:
    """Raises StartError with all that the preflight refuses, or RunError."""
    _, _, report = _check_recipe(args)
    if report.errors:
        raise StartError(report.sentences)


def _launch_command(args: TrainArguments, recipe: Recipe, config: Any) -> list[str]:
    from rag_r1.training.guard.watched_run import WatchedRun

    overrides = [*args.overrides, *absolute_paths(config), *added_overrides(config, args.overrides)]
    flags = [] if args.hours is None else [f"--hours={args.hours}"]
    if args.supervise:
        flags.append("--supervise")  # it gives each attempt a file of its own
    elif (metrics := metrics_file(config)) is not None:
        flags.append(f"--metrics={metrics}")
        overrides.append(metrics_override(metrics))
    run = WatchedRun.from_config(config).to_json()
    command = [sys.executable, "-m", "rag_r1.training.launch", *flags, run, str(recipe.folder), recipe.name]
    return [*command, *overrides]


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the preflight found an error; otherwise launch.py takes this process over."""
    args = read_arguments(
        TrainArguments, arguments, prog="rag-r1 train", description=_DESCRIPTION, check=_check_start
    )
    recipe, config, report = _check_recipe(args)
    if not print_report(report, tables=args.check_only):
        return 1
    if args.estimate:
        from rag_r1.training.step_estimate import print_estimate

        print_estimate(config)
    if args.check_only or args.estimate:
        return 0
    sys.stdout.flush()
    folder = Path(config.trainer.default_local_dir).expanduser()
    command = _launch_command(args, recipe, config)
    with recorded_settings("rag-r1 train", args, folder, other="trainer.default_local_dir=OTHER"):
        os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
