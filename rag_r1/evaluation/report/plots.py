"""Plots for reports and comparisons, with matplotlib (the extra `report`).

Without matplotlib there are no pictures, and nothing else is missing. Names are drawn as they are: a dollar
sign in them starts no formula.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rag_r1.evaluation.report.published_results import labels
from rag_r1.evaluation.report.run_table import RunTable
from rag_r1.io.atomic_files import atomic_file
from rag_r1.runs.markdown import one_line_text
from rag_r1.system.installation import pip_command

logger = logging.getLogger(__name__)

_COLORS = ("#2563eb", "#ea580c", "#059669", "#7c3aed", "#64748b", "#db2777")
_GREY = "#9aa5b1"
#: Numbers of retrievals with a bar of their own; more are one bar.
_MOST_RETRIEVALS = 8


def draw_report(report: Mapping[str, Any], table: RunTable, out: Path) -> list[Path]:
    """`report_scores.png` and `report_searches.png`; returns the paths of those that were drawn."""
    sources = list(report["counts"]["sources"])
    rows = [*labels(sources).values(), "mean of sources"]
    drawn = []
    with open_plot(out / "report_scores.png", drawn, width=7.0, height=1.4 + 0.45 * len(rows)) as axes:
        if axes is not None:
            figures = [report["figures"][name] for name in ("em", "cover_em", "f1")]
            series = []
            for i, figure in enumerate(figures):
                points = [*(figure["sources"][source] for source in sources), figure["mean"]]
                series.append(dots(axes[0], points, i, len(figures)))
            row_names(axes[0], rows)
            axes[0].set(xlim=(0, 1), xlabel="score")
            legend(axes[0].figure, series, [figure["label"] for figure in figures])
    with open_plot(out / "report_searches.png", drawn, width=7.0, height=3.2, panels=2) as axes:
        if axes is not None:
            _searches(axes[0], axes[1], table)
    return drawn


def draw_comparison(comparison: Mapping[str, Any], name: str, out: Path) -> list[Path]:
    """`compare_<name>.png`: each run's value of a figure, and its difference from the first run, by source,
    with intervals."""
    figure, sources = comparison["figures"][name], comparison["sources"]
    runs = [one_line_text(run) for run in comparison["runs"]]
    rows = [*labels(sources).values(), "mean of sources"]
    drawn = []
    height = 1.6 + 0.18 * len(rows) * max(2, len(runs))
    with open_plot(out / f"compare_{name}.png", drawn, width=10.0, height=height, panels=2) as axes:
        if axes is None:
            return drawn
        left, right = axes
        groups = [*(figure["sources"][source] for source in sources), figure["mean"]]
        series = []
        for i in range(len(runs)):
            series.append(dots(left, [group["values"][i] for group in groups], i, len(runs)))
            if i:
                dots(right, [group["differences"][i - 1] for group in groups], i, len(runs))
        right.axvline(0, color=_GREY, linewidth=1)
        row_names(left, rows)
        row_names(right, [""] * len(rows))
        label = one_line_text(figure["label"])
        left.set_xlabel(label, parse_math=False)
        right.set_xlabel(f"{label}: difference from the first run", parse_math=False)
        legend(left.figure, series, runs)
    return drawn


@contextmanager
def open_plot(
    path: Path, drawn: list[Path], *, width: float, height: float, panels: int = 1
) -> Iterator[Any | None]:
    """The axes of a new picture, which is saved at the end and added to `drawn`; None without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        logger.warning("no picture %s: matplotlib is not installed: %s", path.name, pip_command("report"))
        yield None
        return
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        made, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained", squeeze=False)
        try:
            yield axes[0]
            with atomic_file(path) as part:
                made.savefig(part, dpi=150, format="png")
            drawn.append(path)
        finally:
            plt.close(made)


def dots(axes: Any, points: Sequence[Mapping[str, Any]], i: int, of: int) -> Any:
    """One series: a dot for each row, with its interval; the `of` series of a row stand below each other."""
    known = [(row, point) for row, point in enumerate(points) if point["value"] is not None]
    values = [point["value"] for _, point in known]
    lows = [v if point["low"] is None else point["low"] for v, (_, point) in zip(values, known, strict=True)]
    highs = [
        v if point["high"] is None else point["high"] for v, (_, point) in zip(values, known, strict=True)
    ]
    spread = [
        [max(0.0, value - low) for value, low in zip(values, lows, strict=True)],
        [max(0.0, high - value) for value, high in zip(values, highs, strict=True)],
    ]
    heights = [row + 0.6 * ((i + 0.5) / of - 0.5) for row, _ in known]
    color = _COLORS[i % len(_COLORS)]
    return axes.errorbar(values, heights, xerr=spread, fmt="o", markersize=4, capsize=2, color=color)


def legend(figure: Any, series: Sequence[Any], names: Sequence[str]) -> None:
    """A legend above the panels. Its names are set here: matplotlib hides labels that begin with `_`."""
    made = figure.legend(series, list(names), frameon=False, loc="outside upper center", ncols=3)
    for text in made.get_texts():
        text.set_parse_math(False)


def row_names(axes: Any, names: Sequence[str]) -> None:
    """Name the rows of a panel, the first on top."""
    axes.set_yticks(range(len(names)), [one_line_text(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    axes.set_axisbelow(True)


def _searches(left: Any, right: Any, table: RunTable) -> None:
    """How many episodes have how many retrievals, and the EM of each number."""
    scored = ~table.failed
    retrievals = np.minimum(table.columns["retrievals"][scored], _MOST_RETRIEVALS).astype(int)
    right_ones = table.columns["em:squad"][scored]
    counts = np.bincount(retrievals, minlength=_MOST_RETRIEVALS + 1)
    em = np.bincount(retrievals, right_ones, _MOST_RETRIEVALS + 1) / np.maximum(counts, 1)
    names = [*map(str, range(_MOST_RETRIEVALS)), f"{_MOST_RETRIEVALS}+"]
    left.bar(names, counts / max(1, counts.sum()), color=_GREY)
    left.set(xlabel="retrievals", ylabel="share of episodes", ylim=(0, 1))
    there = np.flatnonzero(counts)
    right.bar([names[i] for i in range(len(names))], np.where(counts > 0, em, 0.0), color=_COLORS[0])
    for i in there:
        right.text(i, em[i] + 0.02, f"{em[i]:.2f}", ha="center", fontsize=8)
    right.set(xlabel="retrievals", ylabel="EM", ylim=(0, 1.1))
