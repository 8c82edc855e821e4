"""Writes Markdown: numbers, tables, claims and pages.

Names that come from files are untrusted. `cell` escapes them, so that whatever they contain, a cell stays a
single cell and contains no markup. Renderers such as GitHub's still make links of bare addresses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

#: Length, in characters, to which a text on one line is cut.
_MAX_CHARS = 120
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def one_line_text(text: object) -> str:
    """Return a text on one line of at most `_MAX_CHARS` characters, with `?` for characters that cannot be
    printed."""
    line = " ".join(str(text).split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 3] + "..."


def cell(text: object) -> str:
    """Return a text, as by `one_line_text`, escaped for a table cell, so that none of its characters are
    Markdown or HTML markup."""
    return one_line_text(text).translate(_MARKUP)


def number(value: float | None, decimals: int = 3, *, signed: bool = False) -> str:
    """Return a number as text; a dash for None or NaN. A number that rounds to 0 has no sign."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def integer(count: int | None) -> str:
    """Return a count with thousands separators; a dash for None."""
    return "–" if count is None else f"{count:,}"


def with_interval(
    figure: Mapping[str, float | None] | None, decimals: int = 3, *, signed: bool = False
) -> str:
    """Return a figure and its confidence interval as text, such as `0.423 [0.391, 0.455]`, or a dash if it
    has no value. A figure without an interval has only its value. `figure` has the keys `value`, `low` and
    `high`, as in report.json and compare.json."""
    if not figure or figure["value"] is None:
        return "–"
    text = number(figure["value"], decimals, signed=signed)
    if figure["low"] is None:
        return text
    ends = (number(figure[end], decimals, signed=signed) for end in ("low", "high"))
    return f"{text} [{', '.join(ends)}]"


def p_value(p: float | None) -> str:
    """Return a p-value with three decimals, or `<0.001`; a dash for None or NaN."""
    if p is None or math.isnan(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def table_row(cells: Iterable[object]) -> str:
    """Return a table row with these cells."""
    return f"| {' | '.join(map(str, cells))} |"


def table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> list[str]:
    """Return the lines of a table, whose cells are Markdown. `align` has a letter for each column: `l` for
    left-aligned text, or `r` for right-aligned numbers. By default, only the first column is text."""
    align = align or "l" + "r" * (len(header) - 1)
    rule = "".join("---|" if column == "l" else "---:|" for column in align)
    return [table_row(header), f"|{rule}", *map(table_row, rows)]


def print_table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> None:
    """Print a table (see `table`), with each row as soon as `rows` yields it."""
    print(*table(header, (), align), sep="\n", flush=True)
    for row in rows:
        print(table_row(row), flush=True)


@dataclass(frozen=True)
class Claim:
    """A claim and its outcome."""

    text: str
    #: 1 if the claim held, else 0; with several seeds, the number of seeds with which it held.
    held: int
    #: The number of seeds; None for a claim that was tested once.
    seeds: int | None = None

    @property
    def verdict(self) -> str:
        """`held`, `missed`, or `held in part` if it held with some of the seeds."""
        if self.held == (self.seeds or 1):
            return "held"
        return "held in part" if self.held else "missed"

    def __str__(self) -> str:
        count = f" ({self.held} of {self.seeds} seeds)" if self.seeds is not None else ""
        return f"{self.text}: {self.verdict}{count}"


class Page:
    """A Markdown page, built from blocks that are separated by empty lines. Texts are inserted as Markdown,
    so names from files must first be escaped with `cell`."""

    def __init__(self, title: str | None = None):
        self._blocks = [f"# {title}"] if title else []

    def __str__(self) -> str:
        return "\n\n".join(self._blocks)

    def text(self, *paragraphs: str) -> Self:
        """Add paragraphs."""
        self._blocks += paragraphs
        return self

    def heading(self, title: str) -> Self:
        """Add the heading of a section."""
        return self.text(f"## {title}")

    def table(self, head: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> Self:
        """Add a table (see `table`)."""
        return self.text("\n".join(table(head, rows, align)))

    def bullets(self, items: Iterable[object]) -> Self:
        """Add a list, such as claims; an empty list adds nothing."""
        lines = "\n".join(f"- {item}" for item in items)
        return self.text(lines) if lines else self

    def pictures(self, paths: Iterable[Path], caption: str | None = None) -> Self:
        """Add pictures that are in the page's folder. By default the caption is the file's name."""
        return self.text(*(f"![{caption or cell(path.stem)}]({quote(path.name)})" for path in paths))
