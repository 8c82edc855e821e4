"""Renders compare.json as compare.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.published_results import LAYOUT, PUBLISHED, PublishedResult, label_of, labels
from rag_r1.runs.markdown import Page, cell, integer, number, p_value, with_interval

Comparison = Mapping[str, Any]


def markdown(comparison: Comparison, pictures: Sequence[Path] = ()) -> str:
    """The whole page."""
    tested = [figure for figure in comparison["figures"].values() if figure["tested"]]
    untested = [figure for figure in comparison["figures"].values() if not figure["tested"]]
    page = Page("Comparison")
    _opening(page, comparison)
    _runs(page, comparison)
    page.pictures(pictures)
    for figure in tested:
        page.heading(cell(figure["label"]))
        _values(page, comparison, figure)
        _differences(page, comparison, figure)
    if untested:
        page.heading("Form, searching and cost")
        _add_untested(page, comparison, untested)
    _add_published(page, comparison)
    return str(page)


def _opening(page: Page, comparison: Comparison) -> None:
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


def _runs(page: Page, comparison: Comparison) -> None:
    counts = comparison["questions"]
    columns = comparison["runs"], counts["not_in_all_runs"], counts["failed"]
    rows = [[cell(name), integer(only), integer(failed)] for name, only, failed in zip(*columns, strict=True)]
    page.table(["run", "questions not in all runs", "shared, but failed in this run"], rows)


def _head(comparison: Comparison, first: str) -> list[str]:
    return [first, *map(cell, labels(comparison["sources"]).values()), "Avg.", "all questions"]


def _groups(comparison: Comparison, figure: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Sources (None where the figure has no value), mean, all questions."""
    sources = [figure["sources"].get(source) for source in comparison["sources"]]
    return [*sources, figure["mean"], figure["all"]]


def _values(page: Page, comparison: Comparison, figure: Mapping[str, Any]) -> None:
    groups = _groups(comparison, figure)
    rows = []
    for i, name in enumerate(comparison["runs"]):
        values = [group["values"][i] if group else None for group in groups]
        rows.append([cell(name), *(with_interval(value, figure["decimals"]) for value in values)])
    page.table(_head(comparison, cell(figure["label"])), rows)


def _add_untested(page: Page, comparison: Comparison, figures: Sequence[Mapping[str, Any]]) -> None:
    """Means over the sources of the figures without a test; compare.json has those of each source."""
    first, *other_runs = map(cell, comparison["runs"])
    head = ["mean over the sources", first, *(part for run in other_runs for part in (run, "difference"))]
    rows = []
    for figure in figures:
        values, moves, decimals = figure["mean"]["values"], figure["mean"]["differences"], figure["decimals"]
        cells = [with_interval(values[0], decimals)]
        for value, move in zip(values[1:], moves, strict=True):
            cells += [with_interval(value, decimals), with_interval(move, decimals, signed=True)]
        rows.append([cell(figure["label"]), *cells])
    page.table(head, rows)


def _differences(page: Page, comparison: Comparison, figure: Mapping[str, Any]) -> None:
    """The differences, one line for each source, and their tests."""
    names = _head(comparison, "")[1:]
    head = ["", "questions", "difference", "only first right", "only this right"]
    head += ["p", "p, Holm", "p, bootstrap"]
    for i, name in enumerate(comparison["runs"][1:]):
        rows = []
        for group_name, group in zip(names, _groups(comparison, figure), strict=True):
            if group is None:
                continue
            test = group["differences"][i]
            difference = with_interval(test, figure["decimals"], signed=True)
            only = (integer(test.get(key)) for key in ("only_first", "only_second"))
            ps = (p_value(test.get(key)) for key in ("p", "p_holm", "p_bootstrap"))
            rows.append([group_name, integer(test["questions"]), difference, *only, *ps])
        page.text(f"{cell(name)} against {cell(comparison['runs'][0])}:").table(head, rows)


def _add_published(page: Page, comparison: Comparison) -> None:
    """The papers' rows for the data sets of the comparison."""
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
    """The mean over these data sets, if the paper has all of them."""
    numbers = [row.values[name] for name in names if name in row.values]
    return number(sum(numbers) / len(numbers) if len(numbers) == len(names) else None)
