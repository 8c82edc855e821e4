"""Launches veRL's trainer for `rag-r1 train`, watches it, and prints the next steps when it has ended.

`rag-r1 train` replaces itself by this process after its checks, so that the memory for everything that the
checks have imported is free during the training. If the process is interrupted, it ends the training.

    python -m rag_r1.training.launch [--supervise] [--hours=H] [--metrics=FILE] RUN FOLDER RECIPE key=value...

RUN is a WatchedRun in JSON, and FOLDER and RECIPE are the two fields of a Recipe.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.config.recipes import Recipe
from rag_r1.io.errors import error_text
from rag_r1.options.command_exit import ExitStatus, command_main
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_child_until
from rag_r1.system.concurrent_trainings import warn_of_other_trainings
from rag_r1.training.checkpoint_steps import mend_tracker
from rag_r1.training.composition import compose_recipe
from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.supervisor import Supervisor
from rag_r1.training.guard.watch import print_signs
from rag_r1.training.guard.watched_run import WatchedRun
from rag_r1.training.metrics_files import StartMetrics, metrics_override
from rag_r1.training.next_steps import after_training
from rag_r1.training.time_limit import TimeLimit


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print how it went. Returns the exit status of the training, or 3 if `--hours` ended it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--supervise", action="store_true")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--metrics", type=Path)
    parser.add_argument("run", type=WatchedRun.from_json)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    recipe, run = Recipe(args.folder, args.recipe), args.run
    mend_tracker(run.folder)
    limit = TimeLimit(args.hours, run.folder, run.checkpoints) if args.hours else None
    band = BandCheck.of_recipe(recipe)
    warn_of_other_trainings()
    if args.supervise:
        status = _supervise(run, recipe, args.overrides, band, limit)
    else:
        status = _watch(run, recipe, args.overrides, args.metrics, band, limit)
    if band is not None and (summary := band.summary()):
        print(summary, flush=True)
    if status is None:
        assert limit is not None  # only a limit ends a training without a status
        print(limit.finish(), flush=True)
        return ExitStatus.STOPPED
    if status == 0:
        _print_next_steps(recipe, args.overrides)
    return status


def _print_next_steps(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Print the commands for what was trained or, without failing after a good training, why there are
    none."""
    try:
        lines = after_training(compose_recipe(recipe, overrides))
    except (RunError, OSError) as error:
        lines = [f"the commands for what was trained could not be made: {error_text(error)}"]
    print("\n".join(["", *lines]), flush=True)


def _supervise(
    run: WatchedRun, recipe: Recipe, overrides: Sequence[str], band: BandCheck | None, limit: TimeLimit | None
) -> int | None:
    """Train with a supervisor. Returns the exit status, or None if the limit ended the training."""

    def command(changes: Sequence[str], metrics: Path) -> list[str]:
        return recipe.command([*overrides, *changes, metrics_override(metrics)])

    return Supervisor(run, command, band).run(limit)


def _watch(
    run: WatchedRun,
    recipe: Recipe,
    overrides: Sequence[str],
    metrics: Path | None,
    band: BandCheck | None,
    limit: TimeLimit | None,
) -> int | None:
    """Train once, and print the signs in the file `metrics` if there is one. Returns the exit status, or
    None if the limit ended the training."""
    source = None if metrics is None else StartMetrics(metrics)
    guard = Guard(run.options, run.facts)

    def print_new_signs() -> None:
        for entry in source.new_lines() if source is not None else ():
            print_signs(entry, guard, band, remedies=True)

    def is_over() -> bool:
        print_new_signs()
        return limit is not None and limit.is_over()

    status = run_child_until(is_over, recipe.command(overrides))
    print_new_signs()
    return status


if __name__ == "__main__":
    sys.exit(main())
