"""`rag-r1 train`: composes a recipe, runs the preflight and starts veRL's trainer.

There is no trainer here. The recipe and the `key=value` overrides are Hydra's, and are passed unchanged to
`python -m verl.trainer.main_ppo`. This command only checks them first; then launch.py takes over its process,
which runs veRL and prints the next steps at the end. A user's own files and modules are searched for in the
folder from which the command is started. Ray's workers may run in another folder, so relative names of
existing files are passed on as absolute paths.

A user's own recipe may be anywhere. It may build on a shipped one (`defaults: [rag_r1/grpo, _self_]`), or on
the fragments of which those are made (`- /rag_r1_defaults`, `- /platform: cpu`); see
rag_r1/config/recipes.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.config.recipes import Recipe
from rag_r1.options.arguments.overrides import Overrides, hydra_quoted
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.problems import PreflightReport, error, print_report
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartError
from rag_r1.training.added_overrides import added_overrides, vllm_threads
from rag_r1.training.composition import check_training, compose_valid, reading_recipe
from rag_r1.training.metrics_files import metrics_file, metrics_override
from rag_r1.training.time_limit import HOURS_HELP, Hours, check_resume

if TYPE_CHECKING:
    from omegaconf import DictConfig

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
    "rag_r1.probe_passages",
)
#: Keys of folders that the training makes.
_OUTPUT_FOLDERS = ("rag_r1.trajectory_dir", "trainer.default_local_dir")
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


def absolute_paths(config: DictConfig) -> list[str]:
    """Return overrides that make the paths of existing files and folders absolute, if they are relative or
    begin with `~`. In the folders that the training makes only `~` is replaced, since veRL would take it for
    the name of a folder."""
    from omegaconf import ListConfig, OmegaConf

    def absolute(key: str, name: str) -> str:
        if key in _OUTPUT_FOLDERS:
            return os.path.expanduser(name)
        # The name of a shipped protocol is not a path, even if a folder has that name.
        is_file = key != "rag_r1.protocol" or name.endswith((".yaml", ".yml"))
        path = Path(os.path.expanduser(name))  # that of pathlib raises RuntimeError for an unknown user
        return str(path.absolute()) if is_file and path.exists() else name

    overrides = []
    for key in (*_PATHS, *_OUTPUT_FOLDERS):
        value = OmegaConf.select(config, key, throw_on_missing=False)
        names = list(value) if isinstance(value, ListConfig) else [value]
        if not all(isinstance(name, str) for name in names):
            continue
        if (paths := [absolute(key, name) for name in names]) != names:
            quoted = ",".join(map(hydra_quoted, paths))
            overrides.append(f"{key}={quoted if isinstance(value, str) else f'[{quoted}]'}")
    return overrides


class TrainArguments(Arguments):
    """Arguments of `rag-r1 train`."""

    recipe: str = argument("a shipped recipe (`rag-r1 recipes`), e.g. rag_r1/grpo, or a YAML file", "RECIPE")
    check_only: bool = argument("run the checks and stop", default=False)
    estimate: bool = argument(
        "run the checks, measure for a minute how long a step takes on this CPU, and stop", default=False
    )
    leave_model: bool = argument(
        "refuse settings with which the training leaves no model, as rag-r1 stages does", default=False
    )
    hours: Hours | None = argument(HOURS_HELP, "H", default=None)
    supervise: bool = argument(
        "go back to a good checkpoint when it goes wrong, and start again after a crash", default=False
    )
    overrides: Overrides = argument("any key of veRL or of `rag_r1:`", "key=value", default=[])


def _check_recipe(args: TrainArguments) -> tuple[Recipe, DictConfig, PreflightReport]:
    """Run all checks. Returns the recipe, its configuration without wrong overrides, and the report.

    Prepares this process, and those that it starts, for the user's modules and, if the recipe is for a CPU,
    for veRL's platform. Prints to stderr that it begins. Raises RunError if the recipe cannot be composed.
    """
    add_working_directory()
    with reading_recipe(args.overrides):
        recipe = Recipe.find(args.recipe)
        # Importing Hydra, and then veRL, takes up to a minute on a busy machine.
        print(f"checking {args.recipe} ...", file=sys.stderr, flush=True)
        config, override_problems = compose_valid(recipe, args.overrides)
        check_training(recipe, config)
    if config.trainer.get("device") == "cpu":
        # veRL checks for nvidia-smi: on a machine with GPUs it would choose cuda.
        os.environ["VERL_PLATFORM"] = "cpu"
    from rag_r1.training.guard.supervisor import check_supervision
    from rag_r1.training.preflight import preflight
    from rag_r1.training.preflight.resume import check_run_folder
    from rag_r1.training.stages import check_export

    report = preflight(config)
    report.problems[:0] = override_problems
    folder_problems = check_run_folder(config, "rag-r1 train")
    report.problems += [problem for problem in folder_problems if problem not in report.problems]
    if args.check_only and args.estimate:
        report.problems.append(error("--estimate", "measures after the checks", "leave --check-only out"))
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
    """Raise StartError with all errors of the preflight, or RunError if the recipe cannot be composed."""
    _, _, report = _check_recipe(args)
    if report.errors:
        raise StartError(report.sentences)


def _launch_command(args: TrainArguments, recipe: Recipe, config: DictConfig) -> list[str]:
    """Return the command that runs launch.py, with the user's overrides and those that are added to them."""
    from rag_r1.training.guard.watched_run import WatchedRun

    overrides = [*args.overrides, *absolute_paths(config), *added_overrides(config, args.overrides)]
    flags = [] if args.hours is None else [f"--hours={args.hours}"]
    if args.supervise:
        flags.append("--supervise")  # the supervisor names a file of metrics for each attempt
    elif (metrics := metrics_file(config)) is not None:
        flags.append(f"--metrics={metrics}")
        overrides.append(metrics_override(metrics))
    run = WatchedRun.from_config(config).to_json()
    command = [sys.executable, "-m", "rag_r1.training.launch", *flags, run, str(recipe.folder), recipe.name]
    return [*command, *overrides]


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Check a recipe and start its training. Returns 1 if the preflight finds an error, and 0 after
    --check-only and --estimate. Otherwise launch.py replaces this process."""
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
