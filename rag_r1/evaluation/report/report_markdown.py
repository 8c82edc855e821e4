"""Renders the content of report.json as the page report.md, with a column for each data source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.failure_causes import CAUSES
from rag_r1.evaluation.report.measures import Section
from rag_r1.evaluation.report.published_results import labels
from rag_r1.rollouts.provenance import Provenance
from rag_r1.runs.markdown import Page, cell, integer, with_interval

#: The content of report.json.
Report = Mapping[str, Any]

#: The headings of the sections of measures, in the order of the page.
_TITLES: dict[Section, str] = {
    "scores": "Scores",
    "form": "Form of the answers",
    "answerable": "Questions that the corpus can answer",
    "search": "Searching",
    "cost": "Cost",
    "failures": "Failures",
}
#: Share of failed episodes above which the page warns that the scores only cover a selection.
MANY_FAILED = 0.02


def markdown(report: Report, pictures: Sequence[Path] = ()) -> str:
    """Return the page, with links to the pictures."""
    page = Page("Evaluation").text(*_opening(report)).pictures(pictures)
    _add_causes(page, report)
    for section in _TITLES:
        _add_section(page, report, section)
    _add_statuses(page, report)
    _add_card(page, report)
    return str(page)


def _opening(report: Report) -> list[str]:
    """Return the paragraphs before the tables."""
    counts, interval = report["counts"], report["interval"]
    totals = counts["all"]
    paragraphs = [
        f"{integer(totals['questions'])} questions, {integer(totals['episodes'])} episodes, of which "
        f"{integer(totals['failed'])} failed. A failed episode (engine, search engine, unusable row, bug) is "
        "not a wrong answer: it has no score and is left out of scores and costs; the section on failures "
        "has the EM if all of them had been wrong, or right. In brackets: "
        f"{interval['level']:.0%} intervals ({interval['kind']}, {integer(interval['resamples'])} "
        "replicates). Avg. is the mean over the data sources, in which each counts once."
    ]
    if totals["episodes"] and totals["failed"] > MANY_FAILED * totals["episodes"]:
        share = totals["failed"] / totals["episodes"]
        paragraphs.append(f"**{share:.1%} of the episodes failed**: the scores are of the others only.")
    if report["figures"]["answerable"]["all"]["value"] is None:
        paragraphs.append(
            "Which of the questions the corpus can answer is not known, so the figures of these are missing: "
            "`rag-r1 corpus check` finds out, and its file `answerable_ids.json` is given as `--answerable`."
        )
    if counts["questions_without_record"]:
        paragraphs.append(
            f"**{integer(counts['questions_without_record'])} of {integer(counts['questions_in_data'])} "
            "questions have no record**: the run is not finished, or was made with fewer questions."
        )
    if counts["bad_records"]:
        paragraphs.append(f"**{integer(counts['bad_records'])} bad rows were left out.**")
    if repeats := counts["played_again"]:
        paragraphs.append(f"{integer(repeats)} records are of episodes that were played again.")
    return paragraphs


def _add_causes(page: Page, report: Report) -> None:
    """Add the table of the causes of wrong answers, the most frequent first."""
    sources, totals = report["counts"]["sources"], report["counts"]["all"]
    causes = sorted(totals["causes"].items(), key=lambda item: -item[1])
    if not causes:
        return
    columns = [*sources.values(), totals]
    rows = [
        [f"{name}: {CAUSES[name]}", *(integer(counts["causes"].get(name, 0)) for counts in columns)]
        for name, _ in causes
    ]
    rows.append(["wrong answers", *(integer(sum(counts["causes"].values())) for counts in columns)])
    head = ["", *map(cell, labels(sources).values()), "all questions"]
    page.heading("Why answers are wrong").table(head, rows)


def _add_section(page: Page, report: Report, section: Section) -> None:
    """Add the table of a section's figures. Figures without a value are left out."""
    sources = report["counts"]["sources"]
    rows = []
    for figure in report["figures"].values():
        if figure["section"] == section and figure["all"]["value"] is not None:
            values = [*(figure["sources"][source] for source in sources), figure["mean"], figure["all"]]
            texts = (with_interval(value, figure["decimals"]) for value in values)
            rows.append([cell(figure["label"]), *texts])
    if rows:
        head = ["", *map(cell, labels(sources).values()), "Avg.", "all questions"]
        page.heading(_TITLES[section]).table(head, rows)


def _add_statuses(page: Page, report: Report) -> None:
    """Add the table of the episodes' statuses and failures."""
    sources, totals = report["counts"]["sources"], report["counts"]["all"]
    columns = [*sources.values(), totals]

    def rows(kind: str, label: str) -> list[list[str]]:
        """Return a row for each name in the counts `kind`; `{}` in the label is replaced by the name."""
        return [
            [label.format(cell(name)), *(integer(counts[kind].get(name, 0)) for counts in columns)]
            for name in totals[kind]
        ]

    head = ["", *map(cell, labels(sources).values()), "all questions"]
    body = [
        *([name, *(integer(counts[name]) for counts in columns)] for name in ("questions", "episodes")),
        *rows("statuses", "status {}"),
        *rows("failed_by_kind", "failed: {}"),
        *rows("scored_with_failure", "scored, with a failure: {}"),
    ]
    page.heading("How the episodes ended").table(head, body)


def _add_card(page: Page, report: Report) -> None:
    """Add the table of the run's card, its provenance."""
    page.heading("Card")
    if report["card"] is None:
        page.text("The run has no card, so its figures cannot be compared with others.")
        return
    values = Provenance.model_validate(report["card"]).flat()
    rows = [[cell(key), cell("null" if value is None else value)] for key, value in values.items()]
    page.table(["key", "value"], rows)
