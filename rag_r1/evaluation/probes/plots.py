"""The picture of a search card, with matplotlib (the extra `report`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.evaluation.probes.metrics import CONDITION_NAMES, REAL
from rag_r1.evaluation.report.plots import dots, legend, open_plot, row_names


def draw_search_card(card: Mapping[str, Any], out: Path) -> list[Path]:
    """`search_card.png`: the EM of each condition, over all questions and by group, with intervals."""
    conditions = card["conditions"]
    groups = list(conditions[REAL]["groups"])
    drawn = []
    height = 1.2 + 0.13 * (len(groups) + 1) * max(3, len(conditions))
    with open_plot(out / "search_card.png", drawn, width=7.0, height=height) as axes:
        if axes is not None:
            series = []
            for i, one in enumerate(conditions.values()):
                points = [one["em"], *(one["groups"][group] for group in groups)]
                series.append(dots(axes[0], points, i, len(conditions)))
            row_names(axes[0], ["all questions", *groups])
            axes[0].set(xlim=(-0.02, 1.02), xlabel="EM")
            legend(axes[0].figure, series, [CONDITION_NAMES[name] for name in conditions])
    return drawn
