"""Renders report.json as report.md, with a column for each data source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.published_results import labels
from rag_r1.rollouts.provenance import Provenance
from rag_r1.runs.markdown import cell, integer, table, with_interval

Report = Mapping[str, Any]

_TITLES = {
    "scores": "Scores",
    "form": "Form of the answers",
    "answerable": "Questions that the corpus can answer",
    "search": "Searching",
    "cost": "Cost",
    "failures": "Failures",
}
#: Above this share of failed episodes the scores are of a selection.
_MANY_FAILED = 0.02


def markdown(report: Report, pictures: Sequence[Path] = ()) -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Evaluation",
            "",
            *_opening(report),
            *(line for path in pictures for line in ("", f"![{path.stem}]({path.name})")),
            *(line for section in _TITLES for line in _section(report, section)),
            *_statuses(report),
            *_card(report),
        ]
    )


def _opening(report: Report) -> list[str]:
    counts, interval = report["counts"], report["interval"]
    every = counts["all"]
    lines = [
        f"{integer(every['questions'])} questions, {integer(every['episodes'])} episodes, of which "
        f"{integer(every['failed'])} failed. "
        "A failed episode (engine, search engine, unusable row, bug) is no "
        "wrong answer: it has no score and is left out of scores and costs; the section on failures has the "
        "EM if all of them had been wrong, or right. In brackets: "
        f"{interval['level']:.0%} intervals ({interval['kind']}, "
        f"{integer(interval['resamples'])} replicates). "
        "Avg. is the mean over the data sources, in which each counts once.",
    ]
    told = []
    if every["episodes"] and every["failed"] > _MANY_FAILED * every["episodes"]:
        share = every["failed"] / every["episodes"]
        told.append(f"**{share:.1%} of the episodes failed**: the scores are of the others only.")
    if report["figures"]["answerable"]["all"]["value"] is None:
        told.append(
            "Which of the questions the corpus can answer is not known, so the figures of these are missing: "
            "`rag-r1 corpus check` finds out, and its file `answerable_ids.json` is given as `--answerable`."
        )
    if counts["questions_without_record"]:
        told.append(
            f"**{integer(counts['questions_without_record'])} of {integer(counts['questions_in_data'])} "
            "questions have no record**: the run is not finished, or was made with fewer questions."
        )
    if counts["bad_records"]:
        told.append(f"**{integer(counts['bad_records'])} bad rows were left out.**")
    if counts["played_again"]:
        told.append(f"{integer(counts['played_again'])} records are of episodes that were played again.")
    return [*lines, *(line for one in told for line in ("", one))]


def _section(report: Report, section: str) -> list[str]:
    """The figures of a section that have a value anywhere."""
    figures = [
        figure
        for figure in report["figures"].values()
        if figure["section"] == section and figure["all"]["value"] is not None
    ]
    if not figures:
        return []
    sources = list(report["counts"]["sources"])
    called = labels(sources)
    rows = []
    for figure in figures:
        columns = [*(figure["sources"][source] for source in sources), figure["mean"], figure["all"]]
        shown = [with_interval(column, figure["decimals"]) for column in columns]
        rows.append([cell(figure["label"]), *shown])
    head = ["", *(cell(called[source]) for source in sources), "Avg.", "all questions"]
    return ["", f"## {_TITLES[section]}", "", *table(head, rows)]


def _statuses(report: Report) -> list[str]:
    """How episodes ended, and which failures there were."""
    sources = report["counts"]["sources"]
    called = labels(sources)
    counted = [*sources.values(), report["counts"]["all"]]

    def rows(kind: str, label: str) -> list[list[str]]:
        names = report["counts"]["all"][kind]
        return [
            [label.format(cell(name)), *(integer(one[kind].get(name, 0)) for one in counted)]
            for name in names
        ]

    head = ["", *(cell(called[source]) for source in sources), "all questions"]
    body = [
        ["questions", *(integer(one["questions"]) for one in counted)],
        ["episodes", *(integer(one["episodes"]) for one in counted)],
        *rows("statuses", "status {}"),
        *rows("failed_by_kind", "failed: {}"),
        *rows("scored_with_failure", "scored, with a failure: {}"),
    ]
    return ["", "## How the episodes ended", "", *table(head, body)]


def _card(report: Report) -> list[str]:
    if report["card"] is None:
        return ["", "## Card", "", "The run has no card, so its figures cannot be compared with others."]
    values = Provenance.model_validate(report["card"]).flat()
    rows = [[cell(key), cell("null" if value is None else value)] for key, value in values.items()]
    return ["", "## Card", "", *table(["key", "value"], rows)]
