"""Draws the picture of a pipeline's report.

It shows the exact match of each model by kind of question, the searches, and the curves of the trainings:
held-out exact match and reward. Exact match has Wilson's 95 % interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.estimates import wilson_interval
from rag_r1.evaluation.report.plots import dots, legend, row_names
from rag_r1.runs import pictures

#: The colour of each model.
_COLORS = {
    "base": pictures.GREY,
    "sft": pictures.PURPLE,
    "grpo": pictures.BLUE,
    "grpo_without_sft": pictures.ORANGE,
}


def draw(report: Mapping[str, Any], labels: Mapping[str, str], path: Path) -> list[Path]:
    """Draw the contents of report.json into the file `path`; `labels` are the names of the models.

    Returns the files that were written: none without matplotlib.
    """
    models = report["models"]
    questions = next(iter(models.values()))["questions"]

    def paint(
        match: pictures.Axes, searches: pictures.Axes, held_out: pictures.Axes, reward: pictures.Axes
    ) -> None:
        series = [_draw_match(match, index, models, name) for index, name in enumerate(models)]
        legend(match.figure, series, [labels[name] for name in models], columns=4)
        bars = searches.barh(
            [labels[name] for name in models],
            [figures["searches"] for figures in models.values()],
            color=[_COLORS[name] for name in models],
        )
        searches.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
        searches.invert_yaxis()
        searches.set(title="Searches", xlabel="queries for each question", xlim=(0, None))
        for name, points in report["curves"].items():
            exact = [(int(step), value) for step, value in points["held_out_em"].items()]
            if exact:  # a training may have had no validation
                pictures.line(held_out, exact, labels[name], _COLORS[name])
                low, high = zip(*(wilson_interval(value, questions) for _, value in exact), strict=True)
                steps = [step for step, _ in exact]
                held_out.fill_between(steps, low, high, color=_COLORS[name], alpha=0.12)
            rewards = [(int(step), value) for step, value in points["reward"].items()]
            pictures.line(reward, rewards, labels[name], _COLORS[name], "-")
        held_out.set(title="GRPO: held-out questions, greedy", ylabel="exact match", ylim=(-0.02, 1.02))
        reward.set(title="GRPO: training, sampled", ylabel="mean reward of a step")
        for axes in (held_out, reward):
            axes.set_xlabel("training step")
            pictures.whole_steps(axes)

    return pictures.draw(path, paint, size=(9.6, 6.4), panels=4, rows=2)


def _draw_match(axes: pictures.Axes, index: int, models: Mapping[str, Mapping[str, Any]], name: str) -> Any:
    """Draw the exact match of the model at `index`, with a row for each kind of question and one for all.

    Returns the dots, for the legend.
    """
    figures = models[name]
    counts = {f"em_{kind}": count for kind, count in figures["counts"].items()} | {"em": figures["questions"]}
    ends = [wilson_interval(figures[key], count) for key, count in counts.items()]
    points = [
        {"value": figures[key], "low": low, "high": high}
        for key, (low, high) in zip(counts, ends, strict=True)
    ]
    row_names(axes, [*(kind.replace("_", "-") for kind in figures["counts"]), "all"])
    axes.set(title="Held-out questions, greedy", xlabel="exact match, 95 %", xlim=(-0.02, 1.02))
    return dots(axes, points, index, len(models), _COLORS[name])
