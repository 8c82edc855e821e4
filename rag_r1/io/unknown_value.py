"""`UNKNOWN` stands for a value that is missing or wrong, so that the checks of other values can be made.

It can be passed on, and nothing else: any use raises UnknownValueError, which `needs_unknown` finds in the
errors that are raised from it. So a command reports all problems at once (`listed`), without those that
follow from another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never


class UnknownValueError(ValueError):
    """A value is needed that is missing or wrong."""


class _Unknown:
    """Raises UnknownValueError whenever an attribute, a path, a text, a truth value, ... is needed of it."""

    def _refuse(self, *unused: Any) -> Never:
        raise UnknownValueError("a value is needed that is missing or wrong")

    __getattr__ = __fspath__ = __iter__ = __len__ = __bool__ = __truediv__ = __str__ = __int__ = _refuse


UNKNOWN: Any = _Unknown()


def needs_unknown(error: BaseException | None) -> bool:
    """Returns whether this error, or one that it was raised from, is about a value that is UNKNOWN."""
    while error is not None and not isinstance(error, UnknownValueError):
        error = error.__cause__ or error.__context__
    return error is not None


def listed(problems: Iterable[str]) -> str:
    """Returns a message with the problem, or with all of them, each once, below their number."""
    lines = list(dict.fromkeys(problems))
    if len(lines) > 1:
        lines = [f"{len(lines)} problems:", *(f"  - {problem}" for problem in lines)]
    return "\n".join(lines)
