"""Defines the measures of a report: their names, and how they are computed from a run table.

A measure is a ratio of two sums over questions: the sum of `value` and the sum of `weight`, which is 1 for a
plain mean. Both are first averaged over the samples of a question, so that every question counts once. Scores
and costs only cover episodes that have not failed; measures of failures, and the share of answerable
questions, cover all episodes (`Measure.with_failed`). docs/guides/reports.md lists the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rag_r1.evaluation.report.bootstrap import RatioSums
from rag_r1.evaluation.report.episode_metrics import TERM_PREFIX
from rag_r1.evaluation.report.run_table import QuestionKey, RunTable
from rag_r1.rewards.normalise import NormaliserName

#: The columns of a run table by name, and `failed`.
Columns = Mapping[str, np.ndarray]
#: Computes one number per episode.
Formula = Callable[[Columns], np.ndarray]
Section = Literal["scores", "form", "answerable", "search", "cost", "failures"]
#: Normaliser -> the end of a measure's name, and of its label.
_NORMALISER_ENDS = {"squad": ("", ""), "r1_searcher": ("_r1_searcher", ", R1-Searcher's normaliser")}


@dataclass(frozen=True)
class Measure:
    """A measure of a report: how it is named, shown and computed."""

    name: str
    #: The name in tables and pictures.
    label: str
    section: Section
    value: Formula
    #: The weight of each episode; None for a plain mean.
    weight: Formula | None = None
    #: Whether the values are in [0, 1].
    share: bool = True
    #: Whether failed episodes count too.
    with_failed: bool = False
    #: The number of decimals in tables.
    decimals: int = 3


def column(name: str) -> Formula:
    """Return the formula that reads the column of that name."""
    return lambda columns: columns[name]


def score(metric: str, normaliser: NormaliserName = "squad") -> Measure:
    """Return the measure of `em`, `cover_em` or `f1` with a normaliser. Its name is that of the metric and,
    unless the normaliser is `squad`, that of the normaliser, such as `em_r1_searcher`."""
    label = {"em": "EM", "cover_em": "cover-EM", "f1": "F1"}[metric]
    name_end, label_end = _NORMALISER_ENDS[normaliser]
    return Measure(metric + name_end, label + label_end, "scores", column(f"{metric}:{normaliser}"))


def mean_among(name: str, label: str, section: Section, score_column: str, group: str) -> Measure:
    """Return the measure `{name}_{group}`, such as `em_answered`: the mean of a score over the episodes for
    which the column `group` is 1."""

    def value(columns: Columns) -> np.ndarray:
        return columns[score_column] * columns[group]

    return Measure(f"{name}_{group}", label, section, value, column(group))


def _em_bound(name: str, label: str, for_failed: float) -> Measure:
    """Return the measure of the EM that would result if all failed episodes had the EM `for_failed`."""

    def value(columns: Columns) -> np.ndarray:
        return np.where(columns["failed"] == 1.0, for_failed, columns["em:squad"])

    return Measure(name, label, "failures", value, with_failed=True)


def _column_mean(name: str, label: str, section: Section = "cost", decimals: int = 1) -> Measure:
    """Return the measure of the mean of a column that is not a share."""
    return Measure(name, label, section, column(name), share=False, decimals=decimals)


def _share_of_calls(name: str, label: str, count: str) -> Measure:
    """Return the measure of the share of tool calls that the column `count` counts."""
    return Measure(name, label, "failures", column(count), column("calls"), with_failed=True)


MEASURES: tuple[Measure, ...] = (
    *(score(metric) for metric in ("em", "cover_em", "f1")),
    *(score(metric, "r1_searcher") for metric in ("em", "cover_em", "f1")),
    Measure("answered", "has an answer", "form", column("answered")),
    Measure("formatted", "format accuracy", "form", column("formatted")),
    mean_among("em", "EM of episodes with an answer", "form", "em:squad", "answered"),
    mean_among("em", "EM of well-formed episodes", "form", "em:squad", "formatted"),
    mean_among("cover_em", "cover-EM of well-formed episodes", "form", "cover_em:squad", "formatted"),
    mean_among("f1", "F1 of well-formed episodes", "form", "f1:squad", "formatted"),
    Measure("answerable", "answerable questions", "answerable", column("answerable"), with_failed=True),
    mean_among("em", "EM of answerable questions", "answerable", "em:squad", "answerable"),
    mean_among("cover_em", "cover-EM of answerable questions", "answerable", "cover_em:squad", "answerable"),
    mean_among("f1", "F1 of answerable questions", "answerable", "f1:squad", "answerable"),
    Measure("searched", "searches at all", "search", column("searched")),
    _column_mean("retrievals", "retrievals a question", "search", 2),
    _column_mean("queries", "queries a question", "search", 2),
    _column_mean("repeated_queries", "repeated queries a question", "search", 2),
    _column_mean("turns", "turns a question", "search", 2),
    Measure("recall", "recall of gold passages", "search", column("recall")),
    Measure("found_all", "all gold passages found", "search", column("found_all")),
    _column_mean("seconds", "seconds a question", decimals=2),
    _column_mean("prompt_tokens", "prompt tokens"),
    _column_mean("generated_tokens", "generated tokens"),
    _column_mean("observed_tokens", "observed tokens"),
    Measure("failed", "failed episodes", "failures", column("failed"), with_failed=True),
    _share_of_calls("tool_failure_rate", "failed calls of tools", "failed_calls"),
    _share_of_calls("refused_calls", "refused calls of tools", "refused_calls"),
    Measure("retries", "retries a question", "failures", column("retries"), share=False, with_failed=True),
    _em_bound("em_if_failed_wrong", "EM, if all failed ones were wrong", 0.0),
    _em_bound("em_if_failed_right", "EM, if all failed ones were right", 1.0),
)


def measures_of(table: RunTable) -> tuple[Measure, ...]:
    """Return MEASURES, and a measure for each term of the reward in the records, such as a judge's."""
    return (*MEASURES, *(term_measure(name, [table]) for name in table.terms))


def term_measure(name: str, tables: Sequence[RunTable]) -> Measure:
    """Return the measure of a term of the reward. It is a share if all of its values in these tables are."""
    values = np.concatenate([table.columns[name] for table in tables])
    share = bool(((values >= 0) & (values <= 1) | np.isnan(values)).all())
    return Measure(name, f"{name.removeprefix(TERM_PREFIX)} (term)", "scores", column(name), share=share)


def by_source(table: RunTable, measures: Sequence[Measure]) -> tuple[dict[str, RatioSums], np.ndarray]:
    """Return the bootstrap's sums for each source, and the numbers of episodes behind them, an array of
    shape (sources, measures). Both are in the order of the sources' names."""
    questions, numerators, denominators, counts = _question_means(table, measures)
    sources = np.array([source for source, _ in questions], dtype=object)
    masks = {name: sources == name for name in sorted(set(sources))}
    sums = {name: RatioSums(numerators[mask], denominators[mask]) for name, mask in masks.items()}
    return sums, np.array([counts[mask].sum(axis=0) for mask in masks.values()])


def by_question(table: RunTable, measures: Sequence[Measure]) -> dict[QuestionKey, np.ndarray]:
    """Return an array of shape (measures,) for each question, its means over the question's samples; nan
    where it has no value. Raises ValueError for a measure that is not a plain mean over questions."""
    if weighted := [measure.name for measure in measures if measure.weight is not None]:
        raise ValueError(f"{', '.join(weighted)}: no mean over questions")
    questions, means, _, counts = _question_means(table, measures)
    return dict(zip(questions, np.where(counts > 0, means, np.nan), strict=True))


def _question_means(
    table: RunTable, measures: Sequence[Measure]
) -> tuple[list[QuestionKey], np.ndarray, np.ndarray, np.ndarray]:
    """Return the questions and three arrays of shape (questions, measures): the means of value and weight
    over each question's samples, 0 if none has a value, and the numbers of samples with a value."""
    questions, indices = table.question_indices()
    columns = {**table.columns, "failed": table.failed.astype(float)}
    numerators = np.empty((len(questions), len(measures)))
    denominators, counts = np.empty_like(numerators), np.empty_like(numerators)
    for i, measure in enumerate(measures):
        value = np.asarray(measure.value(columns), dtype=float)
        weight = np.ones_like(value) if measure.weight is None else measure.weight(columns)
        is_measured = ~np.isnan(value) & ~np.isnan(weight)
        if not measure.with_failed:
            is_measured &= ~table.failed
        rows = indices[is_measured]
        samples = np.bincount(rows, minlength=len(questions))
        numerators[:, i] = np.bincount(rows, value[is_measured], len(questions)) / np.maximum(samples, 1)
        denominators[:, i] = np.bincount(rows, weight[is_measured], len(questions)) / np.maximum(samples, 1)
        counts[:, i] = samples
    return questions, numerators, denominators, counts
