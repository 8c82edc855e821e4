"""Launches veRL's trainer for `rag-r1 train` and prints the next steps at its end.

`rag-r1 train` becomes this process after its checks. It is small: what the checks have imported is gone, and
for the length of the training there is nothing in it but a wait. Interrupted, it ends the training.

    python -m rag_r1.training.launch [--hours=H --run=DIR --keep=N] FOLDER RECIPE key=value ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.config.recipes import Recipe
from rag_r1.io.atomic_files import error_text
from rag_r1.options.command_exit import command_main
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_child, run_child_until
from rag_r1.system.concurrent_trainings import warn_of_other_trainings
from rag_r1.training.command import compose_recipe
from rag_r1.training.next_steps import after_training
from rag_r1.training.time_limit import STOPPED, TimeLimit


@command_main()
def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the training; 3 if `--hours` ended it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--keep", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    recipe, overrides = Recipe(args.folder, args.recipe), args.overrides
    warn_of_other_trainings()
    limit = TimeLimit(args.hours, args.run, args.keep) if args.hours else None
    command = recipe.command(overrides)
    status = run_child_until(limit.is_over, command) if limit else run_child(command)
    if status is None:
        assert limit is not None
        print(limit.report(), flush=True)
        return STOPPED
    if status == 0:
        try:
            lines = after_training(compose_recipe(recipe, overrides))
        except (RunError, OSError) as error:
            lines = [f"the commands for what was trained could not be made: {error_text(error)}"]
        print("\n".join(["", *lines]), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
