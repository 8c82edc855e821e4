"""Draws the pictures of reports and comparisons with matplotlib.

The names of runs and data sources are drawn as text on one line: matplotlib would otherwise read `$` as the
start of a formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rag_r1.evaluation.report.published_results import labels
from rag_r1.evaluation.report.run_table import RunTable
from rag_r1.runs import pictures
from rag_r1.runs.markdown import one_line_text
from rag_r1.runs.pictures import SERIES, error_bars

#: Episodes with this many retrievals or more share one bar.
_MAX_RETRIEVALS = 8


def draw_report(report: Mapping[str, Any], table: RunTable, out: Path) -> list[Path]:
    """Draw `report_scores.png` and `report_searches.png`, and return the paths of the pictures that were
    drawn."""
    sources = list(report["counts"]["sources"])
    rows = [*labels(sources).values(), "mean of sources"]

    def scores(axes: pictures.Axes) -> None:
        figures = [report["figures"][name] for name in ("em", "cover_em", "f1")]
        points = [[*(figure["sources"][source] for source in sources), figure["mean"]] for figure in figures]
        series = [dots(axes, group, i, len(figures)) for i, group in enumerate(points)]
        row_names(axes, rows)
        axes.set(xlim=(0, 1), xlabel="score")
        legend(axes.figure, series, [figure["label"] for figure in figures])

    searches = partial(_searches, table=table)
    return [
        *pictures.draw(out / "report_scores.png", scores, size=(7.0, 1.4 + 0.45 * len(rows))),
        *pictures.draw(out / "report_searches.png", searches, size=(7.0, 3.2), panels=2),
    ]


def draw_comparison(comparison: Mapping[str, Any], name: str, out: Path) -> list[Path]:
    """Draw `compare_<name>.png`, which shows each run's value of a figure and its difference from the first
    run, by source and with intervals. Returns a list with its path, which is empty if the picture was not
    drawn."""
    figure, sources = comparison["figures"][name], comparison["sources"]
    runs = [one_line_text(run) for run in comparison["runs"]]
    rows = [*labels(sources).values(), "mean of sources"]

    def values(left: pictures.Axes, right: pictures.Axes) -> None:
        groups = [*(figure["sources"][source] for source in sources), figure["mean"]]
        series = []
        for i in range(len(runs)):
            series.append(dots(left, [group["values"][i] for group in groups], i, len(runs)))
            if i:
                dots(right, [group["differences"][i - 1] for group in groups], i, len(runs))
        right.axvline(0, color=pictures.GREY, linewidth=1)
        row_names(left, rows)
        row_names(right, [""] * len(rows))
        label = one_line_text(figure["label"])
        left.set_xlabel(label, parse_math=False)
        right.set_xlabel(f"{label}: difference from the first run", parse_math=False)
        legend(left.figure, series, runs)

    height = 1.6 + 0.18 * len(rows) * max(2, len(runs))
    return pictures.draw(out / f"compare_{name}.png", values, size=(10.0, height), panels=2)


def dots(
    axes: pictures.Axes, points: Sequence[Mapping[str, Any]], i: int, count: int, color: str | None = None
) -> Any:
    """Draw series `i` of `count`: a dot with its interval in each row. The dots of the series are placed
    below each other within a row, over 60 % of its height. Returns matplotlib's handle for the legend."""
    measured = [(row, point) for row, point in enumerate(points) if point["value"] is not None]
    points = [point for _, point in measured]
    values = [point["value"] for point in points]
    heights = [row + 0.6 * ((i + 0.5) / count - 0.5) for row, _ in measured]
    color = color or SERIES[i % len(SERIES)]
    bars = error_bars(points)
    return axes.errorbar(values, heights, xerr=bars, fmt="o", markersize=4, capsize=2, color=color)


def legend(figure: Any, series: Sequence[Any], names: Sequence[str], columns: int = 3) -> None:
    """Draw a legend above the panels. The names are passed explicitly, since matplotlib hides labels that
    begin with `_`."""
    box = figure.legend(series, list(names), frameon=False, loc="outside upper center", ncols=columns)
    for text in box.get_texts():
        text.set_parse_math(False)


def row_names(axes: pictures.Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, with the first one at the top."""
    axes.set_yticks(range(len(names)), [one_line_text(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color=pictures.LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)


def _searches(left: pictures.Axes, right: pictures.Axes, table: RunTable) -> None:
    """Draw the share and the EM of the episodes by their number of retrievals."""
    scored = ~table.failed
    retrievals = np.minimum(table.columns["retrievals"][scored], _MAX_RETRIEVALS).astype(int)
    counts = np.bincount(retrievals, minlength=_MAX_RETRIEVALS + 1)
    correct = np.bincount(retrievals, table.columns["em:squad"][scored], _MAX_RETRIEVALS + 1)
    em = correct / np.maximum(counts, 1)
    names = [*map(str, range(_MAX_RETRIEVALS)), f"{_MAX_RETRIEVALS}+"]
    left.bar(names, counts / max(1, counts.sum()), color=pictures.GREY)
    left.set(xlabel="retrievals", ylabel="share of episodes", ylim=(0, 1))
    right.bar(names, em, color=SERIES[0])
    for i in np.flatnonzero(counts):
        right.text(i, em[i] + 0.02, f"{em[i]:.2f}", ha="center", fontsize=8)
    right.set(xlabel="retrievals", ylabel="EM", ylim=(0, 1.1))
