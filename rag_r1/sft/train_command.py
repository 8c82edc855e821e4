"""`rag-r1 sft`: composes a fine-tuning recipe, checks it and runs veRL's SFT trainer.

The trainer is veRL's, as with `rag-r1 train`. On GPUs the command starts `verl.trainer.sft_trainer` with
torchrun; on a CPU it starts the same trainer through a small wrapper (rag_r1/plugin/cpu/sft_trainer.py). When
the command is run again, it resumes from the last checkpoint (`trainer.resume_mode: auto`; resume.py).

After the training, the model of the checkpoint with the lowest validation loss is chosen, as in the paper
(RAG-R1, appendix A). It is linked as `model` in `trainer.default_local_dir`, and is a Hugging Face folder
that `rag-r1 train` accepts as `actor_rollout_ref.model.path`. The losses are read from veRL's file logger,
which writes into the same folder, also if VERL_FILE_LOGGER_PATH names another file. Since a resumed training
begins a new log, earlier ones are kept under other names.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.config.recipes import Recipe
from rag_r1.io.atomic_files import atomic_file, move_into_place
from rag_r1.options.arguments.overrides import Overrides, hydra_quoted
from rag_r1.options.command_exit import CommandError, ExitStatus, command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.out_folder import check_out
from rag_r1.options.problems import PreflightReport, Problem, error, error_of, print_report
from rag_r1.options.settings_file import recorded_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_child, run_child_until
from rag_r1.runs.start_checks import StartError
from rag_r1.sft.resume import drop_exhausted_loader_state
from rag_r1.training.checkpoint_steps import saved_checkpoints
from rag_r1.training.composition import compose_valid, reading_recipe
from rag_r1.training.metrics_files import MetricsFile, earlier_files, next_metrics_file
from rag_r1.training.next_steps import after_sft
from rag_r1.training.stages import lock_folder
from rag_r1.training.time_limit import HOURS_HELP, Hours, TimeLimit, check_resume

#: Name of the link to the chosen model in `trainer.default_local_dir`.
MODEL = "model"
#: Name of veRL's log in the same folder.
METRICS = "metrics.jsonl"
#: The modules that train on GPUs and on a CPU.
_GPU_TRAINER = "verl.trainer.sft_trainer"
_CPU_TRAINER = "rag_r1.plugin.cpu.sft_trainer"
_NO_SFT = (
    "not a recipe for SFT, whose defaults have - /sft_trainer_engine, as in rag_r1/sft/qwen_7b; "
    "for reinforcement learning use `rag-r1 train`"
)

_DESCRIPTION = """\
Fine-tune a model on samples that `rag-r1 sft-data` made. Checks first what can be checked without a GPU
(configuration, model, data), reports all problems at once, and then runs veRL's SFT trainer.

example:
  rag-r1 sft --recipe rag_r1/sft/qwen_7b --data data/sft model.path=Qwen/Qwen2.5-7B-Instruct
"""


class SftArguments(Arguments):
    """The arguments of `rag-r1 sft`."""

    recipe: str = argument(
        "a shipped recipe (`rag-r1 recipes`), e.g. rag_r1/sft/qwen_7b, or a YAML file", "RECIPE"
    )
    data: Path | None = argument(
        "folder with train.parquet and validation.parquet (`rag-r1 sft-data`), for data.train_files and "
        "data.val_files",
        "DIR",
        default=None,
    )
    check_only: bool = argument("run the checks, and end without a training", default=False)
    hours: Hours | None = argument(HOURS_HELP, "H", default=None)
    overrides: Overrides = argument("any key of veRL's sft_trainer_engine", "key=value", default=[])


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 sft`.

    Returns 0, or 1 if the preflight found an error or the training could not begin, 3 if it was ended after
    `--hours`, and the status of the training if that failed.
    """
    args = read_arguments(
        SftArguments, arguments, prog="rag-r1 sft", description=_DESCRIPTION, check=_check_start
    )
    config, command, folder, report = _check_recipe(args)
    if not print_report(report):
        return 1
    if args.check_only:
        print(f"all checks passed: {args.recipe} would be trained into {folder}")
        return 0
    with recorded_settings("rag-r1 sft", args, folder, other="trainer.default_local_dir=OTHER"):
        return run(command, folder, config, args.hours)


class _CheckedRecipe(NamedTuple):
    """A recipe with which a training may begin if its report has no errors."""

    #: veRL's configuration.
    config: Any
    #: The command that trains.
    command: list[str]
    #: `trainer.default_local_dir`.
    folder: Path
    report: PreflightReport


def _check_recipe(args: SftArguments) -> _CheckedRecipe:
    """Compose and check the recipe of the arguments. For a training on a CPU, sets VERL_PLATFORM in this
    process's environment, which the training inherits. Raises RunError if the recipe cannot be composed or is
    not for SFT."""
    from rag_r1.training.preflight import preflight_sft

    add_working_directory()
    overrides = [*data_overrides(args.data), *args.overrides]
    with reading_recipe(args.overrides, partial(_check_data, args.data)):
        recipe = Recipe.find(args.recipe)
        config, override_problems = compose_valid(recipe, overrides)
        if "optim" not in config or "engine" not in config:
            raise RunError(f"{args.recipe}: {_NO_SFT}")
    if config.trainer.get("device") == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"  # on a machine with GPUs veRL would choose cuda
    # Values that are missing or have a wrong type are reported by the preflight.
    command = training_command(
        config.trainer.get("device"), config.trainer.get("n_gpus_per_node"), recipe, overrides
    )
    folder = Path(os.path.expanduser(str(config.trainer.get("default_local_dir"))))
    report = preflight_sft(config)
    report.problems[:0] = override_problems
    report.problems += [] if args.hours is None else check_resume(config)
    try:
        _check_data(args.data)
    except RunError as fault:  # replaces the problem of data.train_files, a key that the user did not give
        others = [problem for problem in report.problems if problem.where != "data.train_files"]
        report.problems = [error_of("data.train_files", fault), *others]
    nodes = config.trainer.get("nnodes")
    if isinstance(nodes, int) and nodes > 1:
        report.problems.append(_too_many_nodes(nodes, command))
    try:
        check_out(folder, "rag-r1 sft", "the folder")
        if (folder / MODEL).exists() and not (folder / MODEL).is_symlink():
            raise ValueError(f"{folder / MODEL} is in the way of the link to the chosen model: move it away")
    except ValueError as fault:
        report.problems.append(error_of("trainer.default_local_dir", fault))
    return _CheckedRecipe(config, command, folder, report)


def _check_start(args: SftArguments) -> None:
    """Raise StartError with all errors of the preflight, and the errors of `_check_recipe`."""
    report = _check_recipe(args).report
    if report.errors:
        raise StartError(report.sentences)


def _check_data(folder: Path | None) -> None:
    """Raise RunError unless the folder has train.parquet. Does nothing without a folder."""
    if folder is not None and not (folder / "train.parquet").is_file():
        fault = f"{folder} has no train.parquet" if folder.is_dir() else f"{folder} is not a folder"
        raise RunError(f"--data {fault}: make it with `rag-r1 sft-data`")


def data_overrides(folder: Path | None) -> list[str]:
    """Return the overrides that name the data files in a folder; a missing validation file is not named."""
    if folder is None:
        return []
    files = {"data.train_files": folder / "train.parquet", "data.val_files": folder / "validation.parquet"}
    return [
        f"{key}={hydra_quoted(path.absolute())}"
        for key, path in files.items()
        if path.exists() or key == "data.train_files"
    ]


def training_command(
    device: str | None, processes: int | None, recipe: Recipe, overrides: Sequence[str]
) -> list[str]:
    """Return the command that trains with a recipe on this machine, in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    trainer = _CPU_TRAINER if device == "cpu" else _GPU_TRAINER
    return [sys.executable, *launcher, "-m", trainer, *recipe.command_arguments(overrides)]


def _too_many_nodes(nodes: int, command: Sequence[str]) -> Problem:
    """Return the Problem of a recipe that needs several machines, whose remedy is the command to run on
    each."""
    flags = f"--nnodes={nodes} --node-rank=RANK --master-addr=HOST --master-port=29500"
    arguments = shlex.join(command[1:]).replace("--standalone", flags)
    remedy = f"on each machine, with its RANK from 0 and the HOST of the first: python {arguments}"
    return error("trainer.nnodes", f"is {nodes}, and `rag-r1 sft` starts one machine", remedy)


def run(command: Sequence[str], folder: Path, config: Any, hours: float | None = None) -> int:
    """Train into `folder`, and link and print the chosen model at the end.

    Returns 0, or 3 if the training was ended after `hours`. Without an exported model, it prints a warning
    in place of the link. Raises RunError if another training is running in the folder, which is then left as
    it is, and CommandError with the training's exit status if it fails.
    """
    with lock_folder(folder):
        limit = None if hours is None else TimeLimit(hours, folder, config.trainer.get("max_ckpt_to_keep"))
        drop_exhausted_loader_state(folder, config)
        metrics = folder / METRICS
        if metrics.exists():  # the trainer would overwrite the log of an interrupted training
            move_into_place(metrics, next_metrics_file(folder))
        sys.stdout.flush()
        environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(metrics.absolute())}
        if limit is None:
            status = run_child(command, environment)
        elif (status := run_child_until(limit.is_over, command, environment)) is None:
            print(limit.finish())
            return ExitStatus.STOPPED
        if status:
            raise CommandError(
                f"the training ended with status {status}; the same command resumes it", status
            )
        try:
            model, reason = best_model(folder)
        except FileNotFoundError as fault:
            print(f"warning: {fault}", file=sys.stderr)
            return 0
        link = folder / MODEL
        with atomic_file(link) as part:
            part.unlink(missing_ok=True)  # of a killed invocation
            part.symlink_to(model.relative_to(folder), target_is_directory=True)
        print(f"model: {link} -> {model} ({reason})", *after_sft(link), sep="\n")
        return 0


def best_model(folder: Path) -> tuple[Path, str]:
    """Choose the exported model with the lowest validation loss, or the last one if none has such a loss.

    Returns its folder, and the reason as a text. Raises FileNotFoundError if no model was exported.
    """
    exports = {step: path / "huggingface" for step, path in saved_checkpoints(folder).items()}
    models = {step: path for step, path in exports.items() if any(path.glob("*.safetensors"))}
    if not models:
        raise FileNotFoundError(
            f"no exported model in {folder}: checkpoint.save_contents needs hf_model, and trainer.save_freq "
            "must be above 0 or after_each_epoch"
        )
    losses = {step: loss for step, loss in validation_losses(folder).items() if step in models}
    if not losses:
        return models[max(models)], f"the last of {len(models)}"
    step = min(losses, key=lambda step: (losses[step], step))
    return models[step], f"validation loss {losses[step]:.4f}, the lowest of {len(losses)}"


def validation_losses(folder: Path) -> dict[int, float]:
    """Read the validation loss of each step from veRL's logs in a folder.

    If a resumed training has repeated a step, the last value counts. A loss that is not a number is left out.
    """
    losses: dict[int, float] = {}
    for path in [*earlier_files(folder), folder / METRICS]:
        for step, metrics in MetricsFile(path).new_lines():
            loss = metrics.get("val/loss")
            if isinstance(loss, float) and not math.isnan(loss):
                losses[step] = loss
    return losses


if __name__ == "__main__":
    sys.exit(main())
