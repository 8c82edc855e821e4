"""`UNKNOWN` stands for a missing or wrong value, so that other values can still be checked.

It can be passed on and compared for equality; other uses raise UnknownValueError. `needs_unknown` recognises
this error in a chain of exceptions. A command can therefore report all independent problems at once
(`listed`), and omit those that follow from another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never


class UnknownValueError(ValueError):
    """An operation needs a value that is missing or wrong."""


class _Unknown:
    """Raises UnknownValueError for any use as an attribute, path, text, number, truth value and so on."""

    def _refuse(self, *unused: Any) -> Never:
        raise UnknownValueError("a value is needed that is missing or wrong")

    __getattr__ = __fspath__ = __iter__ = __len__ = __bool__ = __str__ = __int__ = __float__ = _refuse
    __index__ = __getitem__ = __call__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse


#: The value itself, of which there is only one.
UNKNOWN: Any = _Unknown()


def needs_unknown(error: BaseException | None) -> bool:
    """Return whether this error, or one that caused it, is an UnknownValueError. The causes of an error with
    a list `problems` are not searched, since its problems do not follow from an unknown value."""
    while error is not None and not isinstance(error, UnknownValueError):
        if getattr(error, "problems", None):
            return False
        error = error.__cause__ or error.__context__
    return error is not None


def listed(problems: Iterable[str]) -> str:
    """Return a single problem as it is, or a list of all problems, without duplicates, below their
    number."""
    lines = list(dict.fromkeys(problems))
    if len(lines) > 1:
        lines = [f"{len(lines)} problems:", *(f"  - {problem}" for problem in lines)]
    return "\n".join(lines)
