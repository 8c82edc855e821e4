"""How every command ends: `command_main` goes around its `main`.

    @command_main(RunError, OSError)
    def main(arguments: Sequence[str] | None = None) -> int: ...

What happens: what is printed; the status.

    `main` returns: nothing; what it returns
    one of the named errors, or CommandError: `error: ...`; 1, or that of the CommandError
    a disk that is full or cannot be written to: the file and the remedy; 1
    Ctrl-C: with `resumable`, that the same command goes on; 130
    SIGTERM: nothing; 143, after the child processes are ended
    the reader of the output has gone (`| head`): nothing; 1

Any other error is a bug, and keeps its traceback. A command may call the `main` of another: that one returns
its status for its errors, and leaves signals to the outer one.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from contextvars import ContextVar
from enum import IntEnum
from functools import wraps
from typing import ParamSpec

from rag_r1.io.atomic_files import is_disk_error
from rag_r1.io.terminal_text import print_error
from rag_r1.system.child_processes import exit_on_sigterm

_P = ParamSpec("_P")
_is_within_command: ContextVar[bool] = ContextVar("is_within_command", default=False)


class ExitStatus(IntEnum):
    """The status with which a command ends. STOPPED: before its end, for a reason that it printed; the same
    command goes on. INTERRUPTED: by Ctrl-C."""

    DONE = 0
    FAILED = 1
    STOPPED = 3
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with this message and status."""

    def __init__(self, message: object, status: int = ExitStatus.FAILED):
        super().__init__(str(message))
        self.status = status


def command_main(
    *errors: type[BaseException], resumable: bool = False
) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """A decorator that makes a function the `main` of a command, which ends as the top of the module says.
    `errors`: those that a user can mend; only their message is printed. `resumable`: the same command goes on
    after Ctrl-C."""

    def decorate(main: Callable[_P, int]) -> Callable[_P, int]:
        @wraps(main)
        def reporting(*args: _P.args, **kwargs: _P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except CommandError as error:
                print_error(error)
                return error.status
            except KeyboardInterrupt:
                if resumable:
                    print("interrupted: run the same command again to go on", file=sys.stderr)
                raise
            except Exception as error:
                is_output = isinstance(error, BrokenPipeError) and _is_output_broken()
                if is_output or not (isinstance(error, errors) or is_disk_error(error)):
                    raise
                print_error(error)
                return ExitStatus.FAILED

        @wraps(main)
        def ending(*args: _P.args, **kwargs: _P.kwargs) -> int:
            if _is_within_command.get():
                return reporting(*args, **kwargs)
            return _run_outermost(lambda: reporting(*args, **kwargs))

        return ending

    return decorate


def _run_outermost(main: Callable[[], int]) -> int:
    """Run the `main` of the command of this process, with its signals and its output; returns its status."""
    token = _is_within_command.set(True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 gets escapes
    try:
        with exit_on_sigterm():
            try:
                return main()
            finally:  # also after --help, which ends the process
                _flush_output()
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        if not _is_output_broken():
            raise
        # Python flushes again at its end, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FAILED
    finally:
        _is_within_command.reset(token)


def _flush_output() -> None:
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _is_output_broken() -> bool:
    """Returns whether nobody can read what this process prints: a pipe's other end is closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no stdout, or one without a file descriptor
        return False
