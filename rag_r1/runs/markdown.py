"""The writer of Markdown: numbers, tables, claims and pages. Names come from files and are data: whatever
they contain, a cell stays one cell and none of it is markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

#: A longer text is cut.
_MAX_CHARS = 120
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def one_line_text(text: object) -> str:
    """A text on one line, of at most 120 characters, with what cannot be printed as `?`."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 3] + "..."


def cell(text: object) -> str:
    """A text as a cell of a table, without a meaning in Markdown or HTML."""
    return one_line_text(text).translate(_MARKUP)


def number(value: float | None, decimals: int = 3, signed: bool = False) -> str:
    """A number; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return f"{0:.{decimals}f}" if float(text) == 0 and text[0] == "-" else text


def with_interval(figure: dict[str, Any] | None, decimals: int = 3, signed: bool = False) -> str:
    """`0.423 [0.391, 0.455]` from a figure of report.json or compare.json."""
    if not figure or figure["value"] is None:
        return "–"
    text = number(figure["value"], decimals, signed)
    if figure["low"] is None:
        return text
    ends = (number(figure[end], decimals, signed) for end in ("low", "high"))
    return f"{text} [{', '.join(ends)}]"


def p_value(p: float | None) -> str:
    """A p-value with three digits; `<0.001` below."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def table_row(cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> list[str]:
    """The lines of a table, whose cells are Markdown. `align`: `l` for text or `r` for numbers, for each
    column; by default the first column is text and the others are numbers."""
    align = align or "l" + "r" * (len(header) - 1)
    rule = "".join("---|" if column == "l" else "---:|" for column in align)
    return [table_row(header), f"|{rule}", *map(table_row, rows)]


def print_table(header: Sequence[str], rows: Iterable[Iterable[object]], align: str | None = None) -> None:
    """Print a table (see `table`), each row as soon as there is one."""
    print(*table(header, (), align), sep="\n", flush=True)
    for row in rows:
        print(table_row(row), flush=True)


@dataclass(frozen=True)
class Claim:
    """A claim and whether it held; with `of`, in how many of as many seeds."""

    text: str
    held: int
    of: int | None = None

    @property
    def verdict(self) -> str:
        """`held`, `missed`, or `held in part`: in some of the seeds."""
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
    """A count with commas; a dash if there is none."""
    return "–" if count is None else f"{count:,}"
