"""Turns the filters of an address (`right=false&step_min=10`) into the condition of a query.

Column names and operators come from the tables here, values reach DuckDB as parameters only. Of a filter that
is repeated any value may hold (`status=cut&status=answered`); different filters must all hold. A filter that
is unknown, or a value that it cannot have, raises FilterError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rag_r1.explorer.rows import COLUMNS
from rag_r1.explorer.texts import LONGEST_TEXT, text_condition

#: Filters for equal texts; `none` finds rows without a cause.
CHOICES = ("run", "kind", "split", "source", "status", "cause", "id", "question_key", "group")
#: Filters with `_min` and `_max`, and their columns.
RANGES = {
    "step": "step", "searches": "searches", "turns": "turns", "score": "score", "repeated": "repeated",
    "generated": "generated_tokens", "observed": "observed_tokens", "prompt": "prompt_tokens",
    "seconds": "seconds", "tool_failures": "tool_failures",
}  # fmt: skip
#: Value of `right` -> its condition; value of `masked` -> that of the column.
_RIGHT = {"true": '"right"', "false": 'NOT "right"', "none": '"right" IS NULL'}
_BOOL = {"true": True, "false": False}
NAMES = frozenset(
    {*CHOICES, "right", "masked", "text", *(f"{name}_{end}" for name in RANGES for end in ("min", "max"))}
)
#: Most rows of an answer.
MAX_ROWS = 500
#: Most values of one filter.
_MAX_VALUES = 200


class FilterError(ValueError):
    """A parameter of a request that cannot be used; the message names it."""


@dataclass(frozen=True)
class Selection:
    """A condition in SQL and its parameters."""

    where: str = "true"
    values: tuple[Any, ...] = ()

    def and_(self, where: str, *values: Any) -> Selection:
        """The selection of what also has this condition, with the values of its parameters."""
        return Selection(f"{self.where} AND {where}", (*self.values, *values))


def selection_of(items: Iterable[tuple[str, str]]) -> Selection:
    """The selection of filters as (name, value). Raises FilterError."""
    grouped: dict[str, list[str]] = {}
    for name, value in items:
        if name not in NAMES:
            raise FilterError(f"{name[:50]!r} is not a filter: use one of {', '.join(sorted(NAMES))}")
        grouped.setdefault(name, []).append(value)
    selection = Selection()
    for name, values in grouped.items():
        if len(values) > _MAX_VALUES:
            raise FilterError(f"{name}: at most {_MAX_VALUES} values")
        selection = _with_filter(selection, name, values)
    return selection


def _with_filter(selection: Selection, name: str, values: list[str]) -> Selection:
    """The selection with one filter more, of which any value may hold. Raises FilterError."""
    if name in CHOICES:
        condition = f'list_contains(?, "{name}")'
        if name == "cause" and "none" in values:
            condition = f"({condition} OR cause IS NULL)"
        return selection.and_(condition, list(map(_well_formed, values)))
    if name == "right":
        return selection.and_(f"({' OR '.join(_choice(name, value, _RIGHT) for value in values)})")
    if name == "masked":
        return selection.and_("list_contains(?, masked)", [_choice(name, value, _BOOL) for value in values])
    if name == "text":
        texts = [_well_formed(value).lower() for value in values]
        if any(len(text) > LONGEST_TEXT for text in texts):
            raise FilterError(f"text: at most {LONGEST_TEXT} characters")
        return selection.and_(text_condition(len(texts)), *texts, *texts)
    range_name, _, end = name.rpartition("_")
    if len(values) > 1:
        raise FilterError(f"{name} may be given only once")
    sign = ">=" if end == "min" else "<="
    return selection.and_(f'"{RANGES[range_name]}" {sign} ?', number(name, values[0]))


def _choice(name: str, value: str, values: dict[str, Any]) -> Any:
    """Looks a value of a filter up in `values`. Raises FilterError if it is not there."""
    if value not in values:
        raise FilterError(f"{name}: must be one of {', '.join(values)}, not {value[:50]!r}")
    return values[value]


def number(name: str, text: str) -> float:
    """The finite number in a text. Raises FilterError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FilterError(f"{name}: must be a number, not {text[:50]!r}")
    return value


def whole_number(name: str, text: str, minimum: int, maximum: int) -> int:
    """The whole number in a text, from `minimum` to `maximum`. Raises FilterError."""
    if not (text.isascii() and text.isdigit() and len(text) < 16 and minimum <= int(text) <= maximum):
        raise FilterError(f"{name}: must be a whole number from {minimum} to {maximum}, not {text[:50]!r}")
    return int(text)


def column(name: str, text: str) -> str:
    """The text itself, which must be the name of a column that can be sorted by. Raises FilterError."""
    if text not in COLUMNS or text in ("golds", "reward_terms"):
        raise FilterError(f"{name}: there is no such column: {text[:50]!r}")
    return text


def _well_formed(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
