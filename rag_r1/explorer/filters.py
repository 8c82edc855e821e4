"""Turns the filters of a URL (`right=false&step_min=10`) into the condition of a query.

Column names and operators come from the tables below; values reach DuckDB only as parameters. If a filter is
repeated, one of its values must match (`status=cut&status=answered`); different filters must all match.
Unknown filters and impossible values raise FilterError. `whole_number` and `sortable_column` check the other
parameters of a request in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rag_r1.explorer.schema import COLUMNS
from rag_r1.explorer.texts import LONGEST_TEXT, text_condition
from rag_r1.protocols.actions import well_formed

#: Filters by the exact text of a column. `cause=none` finds rows without a cause.
CHOICES = ("run", "kind", "split", "source", "status", "cause", "id", "question_key", "group")
#: Filters by a range, `NAME_min` and `NAME_max`, with their columns.
RANGES = {
    "step": "step", "searches": "searches", "turns": "turns", "score": "score", "repeated": "repeated",
    "generated": "generated_tokens", "observed": "observed_tokens", "prompt": "prompt_tokens",
    "seconds": "seconds", "tool_failures": "tool_failures",
}  # fmt: skip
#: The condition for each value of the filter `right`.
_RIGHT = {"true": '"right"', "false": 'NOT "right"', "none": '"right" IS NULL'}
#: The values of the filter `masked`, as those of the column.
_MASKED = {"true": True, "false": False}
#: The names of all filters.
NAMES = frozenset(
    {*CHOICES, "right", "masked", "text", *(f"{name}_{end}" for name in RANGES for end in ("min", "max"))}
)
#: Maximum number of rows in an answer.
MAX_ROWS = 500
#: Maximum number of values of one filter.
_MAX_VALUES = 200


class FilterError(ValueError):
    """Raised for a parameter of a request that cannot be used; the message names it."""


@dataclass(frozen=True)
class Selection:
    """A condition in SQL."""

    where: str = "true"
    #: The values of the parameters in the condition.
    values: tuple[Any, ...] = ()

    def and_(self, where: str, *values: Any) -> Selection:
        """Return a selection that has a further condition; `values` are those of its parameters."""
        return Selection(f"{self.where} AND {where}", (*self.values, *values))


def selection_of(items: Iterable[tuple[str, str]]) -> Selection:
    """Convert filters, given as (name, value), to a selection. Raises FilterError."""
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
    """Add a filter, one of whose values must match, to a selection. Raises FilterError."""
    if name in CHOICES:
        condition = f'list_contains(?, "{name}")'
        if name == "cause" and "none" in values:
            condition = f"({condition} OR cause IS NULL)"
        return selection.and_(condition, list(map(well_formed, values)))
    if name == "right":
        return selection.and_(f"({' OR '.join(_choice(name, value, _RIGHT) for value in values)})")
    if name == "masked":
        return selection.and_("list_contains(?, masked)", [_choice(name, value, _MASKED) for value in values])
    if name == "text":
        texts = [well_formed(value).lower() for value in values]
        if any(len(text) > LONGEST_TEXT for text in texts):
            raise FilterError(f"text: at most {LONGEST_TEXT} characters")
        return selection.and_(text_condition(len(texts)), *texts, *texts)
    range_name, _, end = name.rpartition("_")
    if len(values) > 1:
        raise FilterError(f"{name} may be given only once")
    sign = ">=" if end == "min" else "<="
    return selection.and_(f'"{RANGES[range_name]}" {sign} ?', _number(name, values[0]))


def _choice(name: str, value: str, values: dict[str, Any]) -> Any:
    """Return what a filter's value stands for in `values`. Raises FilterError if it is not among them."""
    if value not in values:
        raise FilterError(f"{name}: must be one of {', '.join(values)}, not {value[:50]!r}")
    return values[value]


def _number(name: str, text: str) -> float:
    """Return the finite number in a text. Raises FilterError, which names the parameter."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FilterError(f"{name}: must be a number, not {text[:50]!r}")
    return value


def whole_number(name: str, text: str, minimum: int, maximum: int) -> int:
    """Return the whole number in a text if it is from `minimum` to `maximum`. Raises FilterError, which names
    the parameter, otherwise."""
    # Longer texts are refused first, since Python refuses to convert thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 16 and minimum <= int(text) <= maximum):
        raise FilterError(f"{name}: must be a whole number from {minimum} to {maximum}, not {text[:50]!r}")
    return int(text)


def sortable_column(name: str, text: str) -> str:
    """Return `text` if it is the name of a column that can be sorted. Raises FilterError, which names the
    parameter, otherwise."""
    if text not in COLUMNS or text in ("golds", "reward_terms"):
        raise FilterError(f"{name}: must be a column that can be sorted, not {text[:50]!r}")
    return text
