"""Renders the content of compare.json as the page compare.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.published_results import LAYOUT, PUBLISHED, PublishedResult, label_of, labels
from rag_r1.runs.markdown import Page, cell, integer, number, p_value, with_interval

#: The content of compare.json.
Comparison = Mapping[str, Any]


def markdown(comparison: Comparison, pictures: Sequence[Path] = ()) -> str:
    """Return the page, with links to the pictures."""
    tested = [figure for figure in comparison["figures"].values() if figure["tested"]]
    untested = [figure for figure in comparison["figures"].values() if not figure["tested"]]
    page = Page("Comparison")
    _add_opening(page, comparison)
    _add_runs(page, comparison)
    page.pictures(pictures)
    for figure in tested:
        page.heading(cell(figure["label"]))
        _add_values(page, comparison, figure)
        _add_differences(page, comparison, figure)
    if untested:
        page.heading("Form, searching and cost")
        _add_untested(page, comparison, untested)
    _add_published(page, comparison)
    return str(page)


def _add_opening(page: Page, comparison: Comparison) -> None:
    """Add the introduction, and the table of the intended differences between the cards."""
    counts, interval = comparison["questions"], comparison["interval"]
    page.text(
        f"{integer(counts['compared'])} questions that all runs have and none has lost to a failure; all "
        f"figures are about these. Answers are compared with the normaliser `{comparison['normaliser']}`. "
        f"Differences are from the first run, with {interval['level']:.0%} intervals ({interval['kind']}, "
        f"{integer(interval['resamples'])} replicates). "
        "`p` is McNemar's exact test where a question is right "
        "or wrong, else a permutation test; `p, Holm` is corrected over the data sources and runs of a "
        "figure; `p, bootstrap` is the paired bootstrap's."
    )
    if mismatched := counts["another_question_under_the_same_id"]:
        page.text(f"**{integer(mismatched)} ids stand for different questions or golds and were left out.**")
    if differing := comparison["differing"]:
        rows = [
            [cell(key), *(cell("null" if value is None else value) for value in values)]
            for key, values in differing.items()
        ]
        page.text("The runs differ, as was intended, in:")
        page.table(["key", *map(cell, comparison["runs"])], rows)
    if unknown := comparison["unknown"]:
        page.text(f"Not known of any run: {', '.join(map(cell, unknown))}.")


def _add_runs(page: Page, comparison: Comparison) -> None:
    """Add the table of the runs, with the numbers of their questions that are not compared."""
    counts = comparison["questions"]
    columns = zip(comparison["runs"], counts["not_in_all_runs"], counts["failed"], strict=True)
    rows = [[cell(name), integer(only), integer(failed)] for name, only, failed in columns]
    page.table(["run", "questions not in all runs", "shared, but failed in this run"], rows)


def _head(comparison: Comparison, first: str) -> list[str]:
    """Return the head of a table that has a column for each source, for their mean and for all questions."""
    return [first, *map(cell, labels(comparison["sources"]).values()), "Avg.", "all questions"]


def _groups(comparison: Comparison, figure: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Return a figure's entry for each source (None without a value), for their mean and for all
    questions."""
    sources = [figure["sources"].get(source) for source in comparison["sources"]]
    return [*sources, figure["mean"], figure["all"]]


def _add_values(page: Page, comparison: Comparison, figure: Mapping[str, Any]) -> None:
    """Add the table of the runs' values of a figure."""
    groups = _groups(comparison, figure)
    rows = []
    for i, name in enumerate(comparison["runs"]):
        values = [group["values"][i] if group else None for group in groups]
        rows.append([cell(name), *(with_interval(value, figure["decimals"]) for value in values)])
    page.table(_head(comparison, cell(figure["label"])), rows)


def _add_untested(page: Page, comparison: Comparison, figures: Sequence[Mapping[str, Any]]) -> None:
    """Add the table of the figures without a test, as means over the sources; compare.json has each
    source."""
    first, *other_runs = map(cell, comparison["runs"])
    head = ["mean over the sources", first, *(part for run in other_runs for part in (run, "difference"))]
    rows = []
    for figure in figures:
        first_value, *values = figure["mean"]["values"]
        decimals = figure["decimals"]
        cells = [with_interval(first_value, decimals)]
        for value, difference in zip(values, figure["mean"]["differences"], strict=True):
            cells += [with_interval(value, decimals), with_interval(difference, decimals, signed=True)]
        rows.append([cell(figure["label"]), *cells])
    page.table(head, rows)


def _add_differences(page: Page, comparison: Comparison, figure: Mapping[str, Any]) -> None:
    """Add a table of differences from the first run and their tests for every other run, a row per source."""
    names = _head(comparison, "")[1:]
    head = ["", "questions", "difference", "only first right", "only this right"]
    head += ["p", "p, Holm", "p, bootstrap"]
    for i, name in enumerate(comparison["runs"][1:]):
        rows = []
        for group_name, group in zip(names, _groups(comparison, figure), strict=True):
            if group is None:
                continue
            difference = group["differences"][i]
            texts = [with_interval(difference, figure["decimals"], signed=True)]
            texts += [integer(difference.get(key)) for key in ("only_first", "only_second")]
            texts += [p_value(difference.get(key)) for key in ("p", "p_holm", "p_bootstrap")]
            rows.append([group_name, integer(difference["questions"]), *texts])
        page.text(f"{cell(name)} against {cell(comparison['runs'][0])}:").table(head, rows)


def _add_published(page: Page, comparison: Comparison) -> None:
    """Add the papers' results for the data sets of the comparison."""
    compared = {label_of(source) for source in comparison["sources"]}
    names = [name for name in LAYOUT if name in compared]
    rows = [
        [row.system, row.measure, *(number(row.values.get(name)) for name in names), _mean(row, names)]
        + [row.source]
        for row in PUBLISHED
        if any(name in row.values for name in names)
    ]
    if rows:
        page.heading("Published figures, for orientation only").text(
            "**Not comparable** with the runs above: other corpora, retrievers, prompts and budgets, and "
            "partly other questions."
        ).table(["published", "measure", *names, "Avg.", "source"], rows)


def _mean(row: PublishedResult, names: Sequence[str]) -> str:
    """Return the mean over the data sets; a dash if the paper lacks one of them."""
    numbers = [row.values[name] for name in names if name in row.values]
    return number(sum(numbers) / len(numbers) if len(numbers) == len(names) else None)
