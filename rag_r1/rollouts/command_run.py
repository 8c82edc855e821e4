"""Runs the work of a command that plays episodes: a coroutine of its arguments, with a folder of its own.

    return read_and_run(COMMAND, TracesArguments, make_traces, words, _DESCRIPTION)

The work begins with its checks, and ends after them with `--check-only`. The same checks run, in a temporary
folder, if the arguments or the folder are wrong, so that one error reports all problems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import recorded_settings
from rag_r1.rewards import RewardError
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks

Work = Callable[[Any], Coroutine[Any, Any, int]]


def read_and_run(
    command: str,
    arguments: type[Arguments],
    work: Work,
    words: Sequence[str] | None,
    description: str,
    epilog: str | None = None,
) -> int:
    """Read a command's words (None: those of the process) and run its coroutine; returns the exit status that
    `run_command` returns."""
    check = partial(check_command, command, work)
    args = read_arguments(arguments, words, prog=command, description=description, epilog=epilog, check=check)
    return run_command(command, work, args)


@command_main(RunError, RewardError, OSError, resumable=True)
def run_command(command: str, work: Work, args: Arguments) -> int:
    """Run a command's coroutine, whose settings are recorded in its folder (options/settings_file.py);
    returns its exit status, 1 with a message for what the user can mend."""
    try:
        check_out(args.out, command)
    except ValueError:
        check_command(command, work, args)
        raise
    recording = nullcontext() if getattr(args, "check_only", False) else recorded_settings(command, args)
    with recording:
        return asyncio.run(work(args))


def check_command(command: str, work: Work, args: Arguments) -> None:
    """Do all checks of a command, its folder first. Nothing is printed, or written but to a temporary folder.
    Raises StartError with all that is wrong."""
    with StartChecks() as checks, TemporaryDirectory() as folder, redirect_stdout(None):
        checks.run(check_out, args.out, command)
        rehearsal = args.changed(out=Path(folder), check_only=True)
        checks.run(lambda: asyncio.run(work(rehearsal)))
