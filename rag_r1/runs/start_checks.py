"""Checks a command's arguments, files and servers before its work starts, and reports all problems at once.

    with StartChecks() as checks:
        protocol = checks.run(load_protocol, args.protocol)
        read = checks.run_on_all(read_questions, args.questions)
        checks.run(check_out, args.out, "rag-r1 data")

A check raises an error that the user can correct, or returns a result for use after the block. A check with
an argument that is UNKNOWN (rag_r1/io/unknown_value.py), because another check found it wrong, is skipped. At
the end of the block one StartError reports all failed checks.

The servers are tried with one request each, all of them even if one fails: after the block by `try_servers`,
or as checks in the block, begun by `begin_checks`. A function that is not asynchronous, but may be called in
an event loop, calls `try_servers` by `run_in_thread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, ParamSpec, Self, TypeVar

from rag_r1.io.errors import error_text
from rag_r1.io.unknown_value import UNKNOWN, listed, needs_unknown
from rag_r1.runs.errors import RunError
from rag_r1.system.installation import missing_package

_P = ParamSpec("_P")
Result = TypeVar("Result")
#: The errors that a user can correct. A ValueError of a programming error is reported like these.
FAULTS = (ValueError, RunError, OSError)
#: The help text of a command's argument `check_only`.
CHECK_ONLY = "check arguments, files and servers, report all problems, and stop"


class StartError(RunError):
    """A command cannot start, for one or more reasons, each with its remedy."""

    def __init__(self, problems: Sequence[str]):
        self.problems = list(problems)
        super().__init__(listed(self.problems))


class MissingPackageError(RunError):
    """A package that a command needs is not installed."""


def check_packages(command: str, *modules: str) -> None:
    """Raise MissingPackageError for the first of these modules that is not installed."""
    if (fault := missing_package(command, *modules)) is not None:
        raise MissingPackageError(fault)


class StartChecks:
    """Runs checks and collects their problems without duplicates. The block ends with a StartError if there
    are any."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}  # in order
        self._lacks_package = False

    @property
    def problems(self) -> list[str]:
        """The problems found so far, in order."""
        return list(self._problems)

    def run(self, check: Callable[_P, Result], *args: _P.args, **kwargs: _P.kwargs) -> Result | None:
        """Run a check and return its result. Returns None if the check fails, if one of its arguments is
        UNKNOWN, or if it needs a package and one was already reported as missing."""
        if any(value is UNKNOWN for value in (*args, *kwargs.values())):
            return None
        try:
            return check(*args, **kwargs)
        except FAULTS as error:
            self._lacks_package |= isinstance(error, MissingPackageError)
            self.add(error)
            return None
        except ModuleNotFoundError:
            if not self._lacks_package:
                raise
            return None

    def add(self, error: BaseException) -> None:
        """Add the problems of an error like those of a failed check, unless the error only follows from an
        unknown value."""
        if needs_unknown(error):
            return
        self._problems |= dict.fromkeys(_problems_of(error))

    def run_on_all(self, read: Callable[[Sequence[Any]], Result], items: Sequence[Any]) -> Result | None:
        """Read all items together and return the result. If that fails, returns None and reads each item
        alone, so that no problem hides another."""
        result = self.run(read, items)
        if result is None and len(items) > 1:
            for item in items:
                self.run(read, [item])
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *unused: Any) -> None:
        """Raise StartError if a check failed. It includes an error that ended the block if the user can
        correct that one; any other error is passed on."""
        if self._problems and (error is None or isinstance(error, FAULTS)):
            if error is not None:
                self.add(error)
            raise StartError(self.problems) from error


def _problems_of(error: BaseException) -> list[str]:
    """Return the texts of all problems of an error."""
    return error.problems if isinstance(error, StartError) else [error_text(error)]


async def try_servers(*attempts: Awaitable[Any]) -> list[Any]:
    """Await all attempts and return their results.

    Raises the RunError of a failed attempt, or a StartError if several fail. Any other error and a
    cancellation are raised unchanged. Logging is switched off meanwhile, since it would repeat the errors.
    """
    level = logging.root.manager.disable
    logging.disable(max(level, logging.ERROR))
    try:
        results = await asyncio.gather(*attempts, return_exceptions=True)
    finally:
        logging.disable(level)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, RunError):
            raise result
    if failures := [result for result in results if isinstance(result, RunError)]:
        raise failures[0] if len(failures) == 1 else StartError(list(chain(*map(_problems_of, failures))))
    return results


def begin_checks(*checks: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Start one or more checks of servers concurrently, each in a thread. Returns one function per check,
    which waits for the check and returns its result or raises its error; calling it twice does not repeat the
    check."""
    pool = ThreadPoolExecutor(len(checks))
    futures = [pool.submit(check) for check in checks]
    pool.shutdown(wait=False)
    return [check.result for check in futures]


def run_in_thread(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end in a new thread, which also works where an event loop is running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
