"""Plots a pipeline's report: exact match, training curves, searches and format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COLORS = {
    "base": "#9aa5b1",
    "sft": "#7c3aed",
    "grpo": "#2563eb",
    "grpo_without_sft": "#ea580c",
}


def draw(report: Mapping[str, Any], labels: Mapping[str, str], path: Path) -> None:
    """Draw report.png from what report.json has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    models = report["models"]
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (bars, curve, habits) = plt.subplots(
        1, 3, figsize=(13, 3.8), width_ratios=[5, 4, 2.4], layout="constrained"
    )
    keys = [key for key in next(iter(models.values())) if key.startswith("em_")] + ["em"]
    names = [key.removeprefix("em_").replace("_", "-") for key in keys[:-1]] + ["all"]
    _groups(bars, models, keys, names)
    bars.set(ylim=(0, 1.12), title="Held-out exact match, greedy")
    for name, points in report["curves"].items():
        reward, held_out = points["reward"], points["held_out_em"]
        curve.plot(list(map(int, reward)), list(reward.values()), color=_COLORS[name], alpha=0.35)
        curve.plot(list(map(int, held_out)), list(held_out.values()), "o-", color=_COLORS[name])
    curve.xaxis.get_major_locator().set_params(integer=True)
    curve.set(xlabel="step", ylim=(-0.06, 1.02), title="GRPO: held-out EM, and reward (pale)")
    _groups(habits, models, ["searches", "format"], ["searches", "format"])
    habits.set(title="Per question")
    handles = [plt.Rectangle((0, 0), 1, 1, color=_COLORS[name]) for name in models]
    figure.legend(
        handles, [labels[name] for name in models], loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _groups(axes: Any, models: Mapping[str, Mapping[str, float]], keys: list[str], names: list[str]) -> None:
    """A group of bars for each key, with a bar for each model."""
    width = 0.84 / len(models)
    for number, (name, figures) in enumerate(models.items()):
        places = [i + (number - (len(models) - 1) / 2) * width for i in range(len(keys))]
        drawn = axes.bar(places, [figures[key] for key in keys], width=width * 0.95, color=_COLORS[name])
        axes.bar_label(drawn, fmt="%.2f", fontsize=6, padding=1)
    axes.set_xticks(range(len(keys)), names)
