"""Draws the histogram of `rag-r1 filter`, as text and as a picture.

It counts the questions by the number of rollouts until the first right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

from rag_r1.runs import pictures
from rag_r1.sft.difficulty_filter import NEVER

#: Length of the longest bar, in characters.
_WIDTH = 50
_LABEL = "rollouts until the first right answer"


def as_text(bars: Mapping[str, int]) -> str:
    """Return the histogram as lines of text. `bars` maps each number of rollouts, or `never`, to its number
    of questions."""
    maximum = max(bars.values(), default=1)
    lines = (f"{name:>6}  {'#' * ceil(count * _WIDTH / maximum)} {count}" for name, count in bars.items())
    return "\n".join([_LABEL, *lines])


def draw(bars: Mapping[str, int], path: Path) -> list[Path]:
    """Draw the histogram of `bars` into the file `path`. Returns the files that were written: none without
    matplotlib."""

    def histogram(axes: pictures.Axes) -> None:
        colors = [{NEVER: pictures.GREY, "1": pictures.ORANGE}.get(name, pictures.BLUE) for name in bars]
        container = axes.bar(list(bars), list(bars.values()), color=colors)
        axes.bar_label(container, fontsize=8, padding=1)
        axes.set(xlabel=_LABEL, ylabel="questions", title="Difficulty of the questions")

    return pictures.draw(path, histogram, size=(7, 3.6))
