"""Writes the table of rounds as `rounds.json`, `rounds.md` and `rounds.png`.

Each row is an evaluation on the held-out questions: of the first agent, then of each newly trained agent, and
of the agent with each new retriever. The figures are those of `rag-r1 eval`: means over the data sources,
with intervals. The usage in a row covers all requests to models since the previous row, for creating training
data and for the evaluation, but not the rollouts of trainings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Page, cell, integer, number, table, with_interval
from rag_r1.runs.pictures import BLUE, GREEN, ORANGE, error_bars
from rag_r1.runs.steps import PipelineFolder

JSON, MARKDOWN, PICTURE = "rounds.json", "rounds.md", "rounds.png"
_EVALUATION_STEP = re.compile(r"round(\d+)/(agent_)?evaluation")
#: Key of a row's usage -> heading of its column.
_USAGE_COLUMNS = {
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "generated tokens",
}
_COLORS = {"em": BLUE, "recall": GREEN, "searches": ORANGE}
_NOTE = """\
EM, recall, F1 and searches are means over the data sources, on the held-out questions, with bootstrap
intervals. Recall is the share of a question's gold passages that the episode's searches returned among their
first k (`rag_r1.retriever.topk`); it is known where `evaluation.options.supporting` names them. Requests and
tokens are those of training data and evaluation since the row above, without the rollouts of trainings."""


def rows_of(folder: PipelineFolder, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each evaluation among the steps with these names, in order, up to the first
    unfinished step. Each has the name of the step, what was trained before it (`after`), the metrics and
    counts of the evaluation, and the usage since the previous row."""
    rows: list[dict[str, Any]] = []
    usage: dict[str, int] = {}
    for name in names:
        if folder.seconds(name) is None:
            break
        facts = folder.facts(name)
        for key, count in facts.get("usage", {}).items():
            usage[key] = usage.get(key, 0) + count
        if "em" in facts:
            figures = {key: value for key, value in facts.items() if key != "usage"}
            rows.append({"step": name, "after": training_before(name), **figures, "usage": usage})
            usage = {}
    return rows


def training_before(name: str) -> str:
    """Return what was trained last before an evaluation step, such as `round 1, agent`, or `start` before
    the first training."""
    match = _EVALUATION_STEP.fullmatch(name)
    if match is None:
        return "start"
    return f"round {match[1]}, {'agent' if match[2] else 'retriever'}"


def write_table(out: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the three files into the folder (the picture only if matplotlib is installed). Returns the lines
    of the table."""
    columns = ("after", "EM", "searches a question", "recall", "F1", *_USAGE_COLUMNS.values())
    cells = [
        (
            cell(row["after"]),
            with_interval(row["em"]),
            number(row["searches"]["value"], 2),
            with_interval(row["recall"]),
            number(row["f1"]["value"]),
            *(integer(row["usage"][key]) for key in _USAGE_COLUMNS),
        )
        for row in rows
    ]
    write_json(out / JSON, {"format": 1, "rows": list(rows)}, private=True)
    page = Page("Rounds").pictures(draw(rows, out), "EM, recall and searches")
    page.table(columns, cells).text(_NOTE)
    write_text(out / MARKDOWN, f"{page}\n", private=True)
    return table(columns, cells)


def draw(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Draw EM and recall with their intervals, and the searches per question. Returns the paths of the
    pictures; [] without matplotlib."""

    def curves(scores: pictures.Axes, searches: pictures.Axes) -> None:
        """Draw EM and recall in one panel, and searches in the other."""
        _line(scores, rows, "em", "EM")
        _line(scores, rows, "recall", "recall of gold passages")
        scores.set(ylim=(-0.02, 1.02))
        scores.legend(frameon=False)
        _line(searches, rows, "searches", "searches")
        searches.set(ylabel="searches a question")
        searches.set_ylim(bottom=0)
        for axes in (scores, searches):
            axes.set_xticks(range(len(rows)), [row["after"] for row in rows], rotation=30, ha="right")

    return pictures.draw(out / PICTURE, curves, size=(10.0, 3.6), panels=2)


def _line(axes: pictures.Axes, rows: Sequence[Mapping[str, Any]], name: str, title: str) -> None:
    """Draw a metric with its intervals, for all rows that have it."""
    positions = [position for position, row in enumerate(rows) if row[name]["value"] is not None]
    if not positions:
        return
    points = [rows[position][name] for position in positions]
    values, ends = [point["value"] for point in points], error_bars(points)
    color = _COLORS[name]
    axes.errorbar(positions, values, ends, fmt="o-", capsize=2, markersize=4, color=color, label=title)
