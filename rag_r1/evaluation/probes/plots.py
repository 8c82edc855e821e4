"""Draws the picture of a search card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.evaluation.probes.verdict import CONDITION_NAMES, REAL
from rag_r1.evaluation.report.plots import dots, legend, row_names
from rag_r1.runs import pictures


def draw_search_card(card: Mapping[str, Any], out: Path) -> list[Path]:
    """Draw `search_card.png`: the EM of each condition with its interval, over all questions and by group.
    Returns a list with its path, which is empty if the picture was not drawn."""
    conditions = card["conditions"]
    groups = list(conditions[REAL]["groups"])

    def scores(axes: pictures.Axes) -> None:
        points = [[each["em"], *(each["groups"][group] for group in groups)] for each in conditions.values()]
        series = [dots(axes, ems, i, len(conditions)) for i, ems in enumerate(points)]
        row_names(axes, ["all questions", *groups])
        axes.set(xlim=(-0.02, 1.02), xlabel="EM")
        legend(axes.figure, series, [CONDITION_NAMES[name] for name in conditions])

    height = 1.2 + 0.13 * (len(groups) + 1) * max(3, len(conditions))
    return pictures.draw(out / "search_card.png", scores, size=(7.0, height))
