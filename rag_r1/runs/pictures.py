"""Draws all figures with matplotlib (the extra `report`), in one style and with one palette.

Without matplotlib the figures are omitted, and everything else works. The colours are those of Okabe and Ito
(Color Universal Design, 2008), which remain distinguishable with any common form of colour blindness.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.io.atomic_files import atomic_file
from rag_r1.system.installation import pip_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # for the modules that paint

logger = logging.getLogger(__name__)

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
#: The colours of baselines and of guide lines.
GREY, LIGHT = "#999999", "#e5e7eb"
#: The colours of series for which no colour is chosen, in order.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
#: matplotlib's settings for all figures.
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
#: The opacity of a line, at which another line below it remains visible.
LINE_OPACITY = 0.8


def draw(
    path: Path,
    paint: Callable[..., None],
    *,
    size: tuple[float, float],
    panels: int = 1,
    rows: int = 1,
    ratios: Sequence[float] | None = None,
) -> list[Path]:
    """Write a figure as PNG. `paint` is called with the axes of all panels, row by row from left to right.

    - `size`: width and height in inches
    - `panels`, `rows`: the number of panels in total, and of their rows
    - `ratios`: relative widths of the panels in a row

    Returns the path in a list. If matplotlib is not installed, logs a warning and returns an empty list.
    Raises OSError if the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        logger.warning("no picture %s: matplotlib is not installed: %s", path.name, pip_command("report"))
        return []
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, panels // rows, figsize=size, width_ratios=ratios, layout="constrained", squeeze=False
        )
        try:
            paint(*axes.flat)
            with atomic_file(path) as file:
                figure.savefig(file, dpi=150, format="png")  # sharp on a page of this width
        finally:
            plt.close(figure)
    return [path]


def line(axes: Any, points: Sequence[tuple[float, float]], label: str, color: str, style: str = "o-") -> None:
    """Draw a line through points, or nothing if there are none. If several lines have the same label, the
    legend shows it once."""
    if points:  # otherwise matplotlib would draw `style` as a value
        new_label = None if label in axes.get_legend_handles_labels()[1] else label
        axes.plot(*zip(*points, strict=True), style, color=color, alpha=LINE_OPACITY, label=new_label)


def error_bars(points: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return the lengths of the error bars below and above the values of `points`, as matplotlib expects
    them, with the shape (2, points). A missing end of an interval has length 0."""
    return [
        [0.0 if point[end] is None else max(0.0, sign * (point[end] - point["value"])) for point in points]
        for end, sign in (("low", -1), ("high", 1))
    ]


def whole_steps(axes: Any) -> None:
    """Put ticks on the horizontal axis at whole numbers only."""
    axes.xaxis.get_major_locator().set_params(integer=True)
