"""Plots a pipeline's report: exact match, training curves, searches and format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.runs import pictures

_COLORS = {
    "base": pictures.GREY,
    "sft": pictures.PURPLE,
    "grpo": pictures.BLUE,
    "grpo_without_sft": pictures.ORANGE,
}

_HABITS = ["searches", "format"]


def draw(report: Mapping[str, Any], labels: Mapping[str, str], path: Path) -> list[Path]:
    """Draw report.png from what report.json has."""
    models = report["models"]

    def paint(bars: Any, curve: Any, habits: Any) -> None:
        kinds = [key for key in next(iter(models.values())) if key.startswith("em_")]
        names = [*(key.removeprefix("em_").replace("_", "-") for key in kinds), "all"]
        for axes, keys, called in ((bars, [*kinds, "em"], names), (habits, _HABITS, _HABITS)):
            series = [[figures[key] for key in keys] for figures in models.values()]
            pictures.grouped_bars(axes, called, series, [_COLORS[name] for name in models])
        bars.set(ylim=(0, 1.12), title="Held-out exact match, greedy")
        habits.set(title="Per question")
        for name, points in report["curves"].items():
            reward = [(int(step), value) for step, value in points["reward"].items()]
            held_out = [(int(step), value) for step, value in points["held_out_em"].items()]
            curve.plot(*zip(*reward, strict=True), color=_COLORS[name], alpha=0.35)
            curve.plot(*zip(*held_out, strict=True), "o-", color=_COLORS[name])
        pictures.whole_steps(curve)
        curve.set(xlabel="step", ylim=(-0.06, 1.02), title="GRPO: held-out EM, and reward (pale)")
        bars.figure.legend(
            bars.containers[: len(models)],
            [labels[name] for name in models],
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )

    return pictures.draw(path, paint, size=(13, 3.8), panels=3, ratios=[5, 4, 2.4])
