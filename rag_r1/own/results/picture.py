"""Draws the picture of the report: exact match and searches of each model, and the curves of the training.

report.py passes the contents of report.json. Without matplotlib nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.plots import dots, row_names
from rag_r1.runs import pictures

#: The colour of each model, by the name of its evaluation.
COLORS = dict(
    untrained=pictures.GREY, one_shot=pictures.ORANGE, fine_tuned=pictures.PURPLE, trained=pictures.BLUE
)


def draw(report: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the contents of report.json into the file `path`.

    There is a panel for the training curves if the report has any. Returns the files that were written: none
    without matplotlib.
    """
    models, curves = report["models"], report["curves"]

    def paint(match: pictures.Axes, searches: pictures.Axes, *training: pictures.Axes) -> None:
        _draw_match(match, models)
        _draw_searches(searches, models)
        for axes in training:
            _draw_curves(axes, curves)

    panels = 3 if curves["reward"] else 2
    size = (3.3 * panels, max(2.8, 1.6 + 0.45 * len(models)))
    return pictures.draw(path, paint, size=size, panels=panels)


def _draw_match(axes: pictures.Axes, models: Mapping[str, Any]) -> None:
    """Draw the exact match of each model with its interval, one model per row."""
    for row, (name, model) in enumerate(models.items()):
        points = [{"value": None}] * len(models)
        points[row] = model["em"]
        dots(axes, points, 0, 1, COLORS[name])
    row_names(axes, [model["label"] for model in models.values()])
    axes.set(title="Held-out questions", xlabel="exact match, 95 %", xlim=(-0.02, 1.02))


def _draw_searches(axes: pictures.Axes, models: Mapping[str, Any]) -> None:
    """Draw the queries per question, with a bar for each model."""
    values = [model["queries"]["value"] or 0.0 for model in models.values()]
    bars = axes.barh(range(len(models)), values, color=[COLORS[name] for name in models], height=0.5)
    axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    row_names(axes, [""] * len(models))
    axes.set(title="Searches", xlabel="queries for each question", xlim=(0, max(values) * 1.2 or 1))


def _draw_curves(axes: pictures.Axes, curves: Mapping[str, Mapping[Any, float]]) -> None:
    """Draw the reward and the held-out exact match over the steps of the training."""
    for name, label, color in (
        ("reward", "reward, sampled", pictures.GREEN),
        ("held_out_em", "held-out exact match", pictures.BLUE),
    ):
        pictures.line(axes, [(int(step), value) for step, value in curves[name].items()], label, color)
    axes.set(title="Reinforcement learning", xlabel="training step", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, fontsize=8)
    pictures.whole_steps(axes)
