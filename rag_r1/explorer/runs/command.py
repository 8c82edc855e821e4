"""`rag-r1 runs FOLDER`: lists the runs below a folder with their progress, and how to resume stopped ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic_settings import CliPositionalArg

from rag_r1.explorer.runs.facts import RunFacts, runs_below
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import cell, number, print_table

_DESCRIPTION = """\
List the runs below a folder: kind, state (running, finished, stopped), steps or episodes, EM and the number
of judged answers, the time since anything was written, and for each run that has stopped the command that
resumes it. Everything is read from the files in their folders.

examples:
  rag-r1 runs outputs
  rag-r1 runs outputs --as-json
"""
#: The units of a time above seconds, the largest first, with their lengths in seconds.
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


class RunsArguments(Arguments):
    """The arguments of `rag-r1 runs`."""

    folder: CliPositionalArg[Path] = argument("folder whose runs are listed", "FOLDER")
    as_json: bool = argument("print JSON instead of a table", default=False)


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 runs`; returns 0, also if there is no run, or 1 if the folder cannot be read."""
    args = read_arguments(
        RunsArguments, arguments, prog="rag-r1 runs", description=_DESCRIPTION, check=_check_folder
    )
    _check_folder(args)
    runs = runs_below(args.folder)
    if args.as_json:
        print(json.dumps([asdict(run) for run in runs], indent=2))
        return 0
    if not runs:
        print(f"no runs below {args.folder}")
        return 0
    print_table(["run", "kind", "state", "step", "EM", "n", "age"], map(_row, runs), "lllrrrr")
    for run in runs:
        if run.command is not None:
            print(f"go on with {terminal_text(run.name)}:\n  {terminal_text(run.command, 2000)}")
    return 0


def _check_folder(args: RunsArguments) -> None:
    """Raise RunError if the folder does not exist, or is a file."""
    if not args.folder.is_dir():
        fault = "is a file" if args.folder.exists() else "does not exist"
        raise RunError(f"{args.folder} {fault}: give the folder below which the runs lie")


def _row(run: RunFacts) -> list[str]:
    """Return the cells of a run in the table."""
    step = "–" if run.step is None else f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else "")
    n = "–" if run.n is None else f"{run.n:,}"
    return [cell(run.name), cell(run.kind), run.state, step, number(run.em), n, age(run.age_s)]


def age(seconds: float) -> str:
    """Format a time in one unit: `45 s`, `12 min`, `3 h`, `20 d`."""
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= size), ("s", 1))
    return f"{int(seconds // size)} {unit}"


if __name__ == "__main__":
    sys.exit(main())
