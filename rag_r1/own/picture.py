"""Draws the report of a run: exact match and searches of each model, and the curves of the training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.plots import dots, row_names
from rag_r1.runs import pictures

COLORS = {
    "untrained": pictures.GREY,
    "one_shot": pictures.ORANGE,
    "fine_tuned": pictures.PURPLE,
    "trained": pictures.BLUE,
}


def draw(report: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw report.png from what report.json has; the path, in a list that is empty without matplotlib. The
    curves have a panel if there are any."""
    models, curves = report["models"], report["curves"]
    has_curves = bool(curves["reward"])

    def paint(match: Any, searches: Any, *training: Any) -> None:
        labels = [model["label"] for model in models.values()]
        for row, (name, model) in enumerate(models.items()):
            points = [{"value": None}] * len(models)
            points[row] = model["em"]
            dots(match, points, 0, 1, COLORS[name])
        row_names(match, labels)
        match.set(title="Held-out questions", xlabel="exact match, 95 %", xlim=(-0.02, 1.02))
        values = [model["queries"]["value"] or 0.0 for model in models.values()]
        bars = searches.barh(range(len(models)), values, color=[COLORS[name] for name in models], height=0.5)
        searches.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
        row_names(searches, [""] * len(models))
        searches.set(title="Searches", xlabel="queries for each question", xlim=(0, max(values) * 1.2 or 1))
        for axes in training:
            _curves(axes, curves)

    panels = 3 if has_curves else 2
    size = (3.3 * panels, max(2.8, 1.6 + 0.45 * len(models)))
    return pictures.draw(path, paint, size=size, panels=panels)


def _curves(axes: Any, curves: Mapping[str, Mapping[Any, float]]) -> None:
    for name, label, color in (
        ("reward", "reward, sampled", pictures.GREEN),
        ("held_out_em", "held-out exact match", pictures.BLUE),
    ):
        points = [(int(step), value) for step, value in curves[name].items() if not math.isnan(value)]
        if points:
            pictures.line(axes, points, label, color)
    axes.set(title="Reinforcement learning", xlabel="training step", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, fontsize=8)
    pictures.whole_steps(axes)
