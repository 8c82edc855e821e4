"""The checks of a command before its work: all problems at once, and then all servers at once.

    with StartChecks() as checks:
        protocol = checks.run(load_protocol, args.protocol)
        read = checks.run_on_all(read_questions, args.questions)
        checks.run(check_out, args.out, "rag-r1 data")

A check raises what a user can correct, and its result is used after the block. The block ends with one error
for all checks that failed. Then the servers are tried with one request each, all of them even if one fails
(`try_servers`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, Self, TypeVar

from rag_r1.io.atomic_files import error_text
from rag_r1.io.unknown_value import UNKNOWN, listed, needs_unknown
from rag_r1.runs.errors import RunError
from rag_r1.system.installation import missing_package

_P = ParamSpec("_P")
Result = TypeVar("Result")
#: What a user can correct.
FAULTS = (ValueError, RunError, OSError)
#: Of the argument `check_only` of a command.
CHECK_ONLY = "check arguments, files and servers, report all problems, and stop"


class StartError(RunError):
    """A command that cannot start, for one or several reasons, each with its remedy."""

    def __init__(self, problems: Sequence[str]):
        self.problems = list(problems)
        super().__init__(listed(self.problems))


class MissingPackageError(RunError):
    """A package that a command needs is not installed."""


def check_packages(command: str, *modules: str) -> None:
    """Raises MissingPackageError for the first of these modules that cannot be found."""
    if (fault := missing_package(command, *modules)) is not None:
        raise MissingPackageError(fault)


class StartChecks:
    """Runs checks, and keeps the problems of those that fail, each once; see the top of the module."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}  # in order
        self._lacks_package = False

    @property
    def problems(self) -> list[str]:
        """The problems until now."""
        return list(self._problems)

    def run(self, check: Callable[_P, Result], *args: _P.args, **kwargs: _P.kwargs) -> Result | None:
        """The result of a check; None if it failed, or needs an argument that is missing or wrong, or a
        package of those that are known to be missing."""
        if any(value is UNKNOWN for value in (*args, *kwargs.values())):
            return None
        try:
            return check(*args, **kwargs)
        except FAULTS as error:
            self._lacks_package |= isinstance(error, MissingPackageError)
            self._add(error)
            return None
        except ModuleNotFoundError:
            if not self._lacks_package:
                raise
            return None

    def _add(self, error: BaseException) -> None:
        if needs_unknown(error):
            return
        texts = error.problems if isinstance(error, StartError) else [error_text(error)]
        self._problems |= dict.fromkeys(texts)

    def run_on_all(self, read: Callable[[Sequence[Any]], Result], items: Sequence[Any]) -> Result | None:
        """The result of reading all of these together; if that fails, each is read by itself, so that none
        hides the problems of another."""
        result = self.run(read, items)
        for item in items if result is None and len(items) > 1 else ():
            self.run(read, [item])
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *unused: Any) -> None:
        """Raises StartError if a check failed, together with the error that ended the block, if a user can
        correct that one too; any other comes as it is."""
        if self._problems and (error is None or isinstance(error, FAULTS)):
            if error is not None:
                self._add(error)
            raise StartError(self.problems) from error


async def try_servers(*attempts: Awaitable[Any]) -> list[Any]:
    """The results of these, which are all awaited. Raises StartError with all RunErrors; any other error, and
    a cancellation, as it comes. Clients log nothing meanwhile: what they would say is in the error."""
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
        raise failures[0] if len(failures) == 1 else StartError([str(failure) for failure in failures])
    return results
