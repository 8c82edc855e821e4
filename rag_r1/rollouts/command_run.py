"""Runs a command that plays episodes: reads its arguments, checks them and awaits its coroutine.

    return read_and_run(COMMAND, TracesArguments, make_traces, arguments, _DESCRIPTION)

The command's coroutine takes the arguments and returns the exit status. It begins with its checks and returns
after them if `--check-only` is set. If the arguments or the output folder are wrong, it is run with
`--check-only` in a temporary folder, so that one error reports all problems.
"""

from __future__ import annotations

import asyncio
import sys
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
from rag_r1.rollouts.arguments import doubled_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import check_settings
from rag_r1.runs.start_checks import StartChecks

#: Arguments that are settings of a run (`settings_of` in session.py) under the same names.
_SETTINGS = {"seed", "top_p", "samples", "temperature", "replays", "first_temperature", "right_from"}
#: The coroutine of a command: arguments in, exit status out.
Work = Callable[[Any], Coroutine[Any, Any, int]]


def read_and_run(
    command: str,
    cls: type[Arguments],
    work: Work,
    arguments: Sequence[str] | None,
    description: str,
    epilog: str | None = None,
) -> int:
    """Read a command's arguments, by default those of the process, as a `cls`, and run its coroutine `work`.
    `description` and `epilog` are parts of its help. Returns the exit status of `run_command`."""
    check = partial(check_command, command, work)
    faults = doubled_settings(sys.argv[1:] if arguments is None else arguments)
    texts = {"prog": command, "description": description, "epilog": epilog}
    args = read_arguments(cls, arguments, check=check, faults=faults, **texts)
    return run_command(command, work, args)


@command_main(RunError, RewardError, OSError, resumable=True)
def run_command(command: str, work: Work, args: Arguments) -> int:
    """Run a command's coroutine, and record its settings in its folder (options/settings_file.py). Returns
    the coroutine's exit status, or 1 after printing an error that the user can correct."""
    try:
        check_out(args.out, command, writes=getattr(args, "writes", ()))
    except ValueError as error:
        check_command(command, work, args)
        raise RunError(str(error)) from error  # if the folder has become usable since the first check
    writes = not any(getattr(args, flag, False) for flag in ("check_only", "estimate"))
    with recorded_settings(command, args) if writes else nullcontext():
        return asyncio.run(work(args))


def check_command(command: str, work: Work, args: Arguments) -> None:
    """Run all checks of a command, beginning with its folder. Prints nothing and writes only to a temporary
    folder. Raises StartError with all problems."""
    with StartChecks() as checks, TemporaryDirectory() as folder, redirect_stdout(None):
        checks.run(check_out, args.out, command, writes=getattr(args, "writes", ()))
        set_values = {name: getattr(args, name) for name in _SETTINGS & args.model_fields_set}
        checks.run(check_settings, args.out, set_values, is_complete=False)
        rehearsal = args.changed(out=Path(folder), check_only=True)
        checks.run(lambda: asyncio.run(work(rehearsal)))
