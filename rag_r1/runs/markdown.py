"""Renders tables and numbers as Markdown. Names come from files and are data: whatever they contain, a cell
stays one cell and none of it is markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: A longer text is cut.
_LONGEST = 120
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def one_line_text(text: object) -> str:
    """A text on one line, of at most 120 characters, with what cannot be printed as `?`."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def cell(text: object) -> str:
    """A text as a cell of a table, without a meaning in Markdown or HTML."""
    return one_line_text(text).translate(_MARKUP)


def number(value: float | None, decimals: int = 3, signed: bool = False) -> str:
    """A number; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    shown = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return f"{0:.{decimals}f}" if float(shown) == 0 and shown[0] == "-" else shown


def with_interval(figure: dict[str, Any] | None, decimals: int = 3, signed: bool = False) -> str:
    """`0.423 [0.391, 0.455]` from a figure of report.json or compare.json."""
    if not figure or figure["value"] is None:
        return "–"
    shown = number(figure["value"], decimals, signed)
    if figure["low"] is None:
        return shown
    ends = (number(figure[end], decimals, signed) for end in ("low", "high"))
    return f"{shown} [{', '.join(ends)}]"


def p_value(p: float | None) -> str:
    """A p-value with three digits; `<0.001` below."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is text and whose others are numbers. Cells are Markdown."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def integer(count: int) -> str:
    """A count with commas."""
    return f"{count:,}"
