"""Defines how every command ends, with the decorator `command_main` for its `main`.

    @command_main(RunError, OSError)
    def main(arguments: Sequence[str] | None = None) -> int: ...

The exit status and the output depend on the reason:

    `main` returns                               its return value; prints nothing
    one of the named errors                      1; prints `error: ...`
    CommandError                                 its own status; prints `error: ...`
    the disk is full or not writable             1; prints the file and the remedy
    Ctrl-C                                       130; if `resumable`, prints that the same command resumes
    SIGTERM                                      143, after ending the child processes; prints nothing
    stdout is closed by its reader (`| head`)    1; prints nothing

Any other error is a bug and keeps its traceback. A command may call the `main` of another one. The inner
`main` then returns a status for its own errors, and leaves signals to the outer one.
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

from rag_r1.io.errors import is_disk_error
from rag_r1.io.terminal_text import print_error
from rag_r1.system.child_processes import exit_on_sigterm

_P = ParamSpec("_P")
_is_within_command: ContextVar[bool] = ContextVar("is_within_command", default=False)


class ExitStatus(IntEnum):
    """The exit status of a command."""

    DONE = 0
    FAILED = 1
    #: The command ended early for a reason that it printed, and the same command resumes.
    STOPPED = 3
    #: Ctrl-C.
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with this message and exit status."""

    def __init__(self, message: object, status: int = ExitStatus.FAILED):
        super().__init__(str(message))
        self.status = status


def command_main(
    *errors: type[Exception], resumable: bool = False
) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """Return a decorator that makes a function the `main` of a command, which ends as described at the top
    of the module.

    `errors` are the errors that a user can correct, for which only the message is printed. `resumable` says
    that the same command resumes after Ctrl-C.
    """

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
                is_closed = isinstance(error, BrokenPipeError) and _is_stdout_closed()
                if is_closed or not (isinstance(error, errors) or is_disk_error(error)):
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
    """Run the `main` of this process's command, handle its signals and its output, and return its status."""
    token = _is_within_command.set(True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that are not UTF-8
    try:
        with exit_on_sigterm():
            try:
                return main()
            finally:  # also after --help, which raises SystemExit
                if sys.stdout is not None and not sys.stdout.closed:
                    sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except OSError as error:
        is_closed = isinstance(error, BrokenPipeError) and _is_stdout_closed()
        if not (is_closed or is_disk_error(error)):
            raise
        if not is_closed:  # stdout is a file on a full disk, which the flush has found
            print_error(error)
        # Python flushes stdout again when it exits, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FAILED
    finally:
        _is_within_command.reset(token)


def _is_stdout_closed() -> bool:
    """Return whether stdout is a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # stdout is missing or has no file descriptor
        return False
