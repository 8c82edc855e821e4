"""Writes Markdown: numbers, tables, claims and pages. Names come from files and are data: whatever they
contain, a cell stays one cell and none of it is markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

#: Characters of a line; a longer text is cut off.
_MAX_CHARS = 120
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def one_line_text(text: object) -> str:
    """Returns a text as one line of at most 120 characters, with `?` for what cannot be printed."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 3] + "..."


def cell(text: object) -> str:
    """Returns a text as a cell of a table, escaped, so that none of it is Markdown or HTML."""
    return one_line_text(text).translate(_MARKUP)


def number(value: float | None, decimals: int = 3, signed: bool = False) -> str:
    """Returns a number as text; a dash for None or nan."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return f"{0:.{decimals}f}" if float(text) == 0 and text[0] == "-" else text


def with_interval(figure: dict[str, Any] | None, decimals: int = 3, signed: bool = False) -> str:
    """Returns a figure of report.json or compare.json as `0.423 [0.391, 0.455]`; a dash without a value."""
    if not figure or figure["value"] is None:
        return "–"
    text = number(figure["value"], decimals, signed)
    if figure["low"] is None:
        return text
    ends = (number(figure[end], decimals, signed) for end in ("low", "high"))
    return f"{text} [{', '.join(ends)}]"


def p_value(p: float | None) -> str:
    """Returns a p-value with three digits, `<0.001` if it is lower; a dash for None."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def table_row(cells: Iterable[object]) -> str:
    """Returns the line of a table with these cells."""
    return f"| {' | '.join(map(str, cells))} |"


def table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> list[str]:
    """Returns the lines of a table, whose cells are Markdown. `align`: `l` for text or `r` for numbers, for
    each column; by default the first column is text and the others are numbers."""
    align = align or "l" + "r" * (len(header) - 1)
    rule = "".join("---|" if column == "l" else "---:|" for column in align)
    return [table_row(header), f"|{rule}", *map(table_row, rows)]


def print_table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> None:
    """Print a table (see `table`), each row as soon as `rows` yields it."""
    print(*table(header, (), align), sep="\n", flush=True)
    for row in rows:
        print(table_row(row), flush=True)


@dataclass(frozen=True)
class Claim:
    """A claim, and whether it held (1) or not (0); with `of` seeds, in how many of these it held."""

    text: str
    held: int
    of: int | None = None

    @property
    def verdict(self) -> str:
        """Returns `held`, `missed`, or `held in part` if it held in some of the seeds."""
        if self.held == (self.of or 1):
            return "held"
        return "held in part" if self.held else "missed"

    def __str__(self) -> str:
        seeds = f" ({self.held} of {self.of} seeds)" if self.of is not None else ""
        return f"{self.text}: {self.verdict}{seeds}"


class Page:
    """A page of Markdown, as blocks with an empty line between them. Texts are Markdown: names that come from
    files go through `cell` first."""

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
        """Add a list, e.g. of claims; nothing for an empty one."""
        lines = "\n".join(f"- {item}" for item in items)
        return self.text(lines) if lines else self

    def pictures(self, paths: Iterable[Path], caption: str | None = None) -> Self:
        """Add pictures, which lie in the page's folder; the caption is by default the file's name."""
        return self.text(*(f"![{caption or path.stem}]({path.name})" for path in paths))


def integer(count: int | None) -> str:
    """Returns a count with commas; a dash for None."""
    return "–" if count is None else f"{count:,}"
