"""The measures of a report: their names, and how they are computed from a run table.

A figure is a ratio of two sums over questions: of `value`, and of `weight`, which is 1 for a plain mean.
Both are first averaged over the samples of a question, so a question counts once, however many samples it
has. Scores and costs are those of the episodes that have not failed; figures about failures are those of
all. docs/guides/reports.md lists the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rag_r1.evaluation.report.bootstrap import RatioSums
from rag_r1.evaluation.report.episode_metrics import TERM
from rag_r1.evaluation.report.run_table import RunTable
from rag_r1.rewards.normalise import NormaliserName

Columns = Mapping[str, np.ndarray]
Formula = Callable[[Columns], np.ndarray]
Section = Literal["scores", "form", "answerable", "search", "cost", "failures"]


@dataclass(frozen=True)
class Measure:
    """One figure. `share`: its values lie in [0, 1]; `of_all`: also of the episodes that have failed;
    `decimals` in tables."""

    name: str
    label: str
    section: Section
    value: Formula
    weight: Formula | None = None
    share: bool = True
    of_all: bool = False
    decimals: int = 3


def column(name: str) -> Formula:
    """The column of that name."""
    return lambda columns: columns[name]


def _times(first: str, second: str) -> Formula:
    return lambda columns: columns[first] * columns[second]


def score(metric: str, normaliser: NormaliserName = "squad") -> Measure:
    """EM, cover-EM or F1 with a normaliser; its name is `em`, or `em_r1_searcher`."""
    label = {"em": "EM", "cover_em": "cover-EM", "f1": "F1"}[metric]
    ours = normaliser == "squad"
    return Measure(
        metric if ours else f"{metric}_{normaliser}",
        label if ours else f"{label}, R1-Searcher's normaliser",
        "scores",
        column(f"{metric}:{normaliser}"),
    )


def _among(metric: str, label: str, section: Section, group: str, of: str) -> Measure:
    """A score of the answers, or questions, for which the column `group` is 1."""
    name = f"{metric}_{group}"
    return Measure(name, f"{label} of {of}", section, _times(f"{metric}:squad", group), column(group))


def _bound(name: str, label: str, for_failed: float) -> Measure:
    """EM if all failed episodes had this value."""

    def value(columns: Columns) -> np.ndarray:
        return np.where(columns["failed"] == 1.0, for_failed, columns["em:squad"])

    return Measure(name, label, "failures", value, of_all=True)


def _cost(name: str, label: str, section: Section = "cost", decimals: int = 1) -> Measure:
    return Measure(name, label, section, column(name), share=False, decimals=decimals)


MEASURES: tuple[Measure, ...] = (
    *(score(metric) for metric in ("em", "cover_em", "f1")),
    *(score(metric, "r1_searcher") for metric in ("em", "cover_em", "f1")),
    Measure("answered", "has an answer", "form", column("answered")),
    Measure("formatted", "format accuracy", "form", column("formatted")),
    _among("em", "EM", "form", "answered", "episodes with an answer"),
    _among("em", "EM", "form", "formatted", "well-formed episodes"),
    _among("cover_em", "cover-EM", "form", "formatted", "well-formed episodes"),
    _among("f1", "F1", "form", "formatted", "well-formed episodes"),
    Measure("answerable", "answerable questions", "answerable", column("answerable"), of_all=True),
    _among("em", "EM", "answerable", "answerable", "answerable questions"),
    _among("cover_em", "cover-EM", "answerable", "answerable", "answerable questions"),
    _among("f1", "F1", "answerable", "answerable", "answerable questions"),
    Measure("searched", "searches at all", "search", column("searched")),
    _cost("retrievals", "retrievals a question", "search", 2),
    _cost("queries", "queries a question", "search", 2),
    _cost("repeated_queries", "repeated queries a question", "search", 2),
    _cost("turns", "turns a question", "search", 2),
    Measure("recall", "recall of gold passages", "search", column("recall")),
    Measure("found_all", "all gold passages found", "search", column("found_all")),
    _cost("seconds", "seconds a question", decimals=2),
    _cost("prompt_tokens", "prompt tokens"),
    _cost("generated_tokens", "generated tokens"),
    _cost("observed_tokens", "observed tokens"),
    Measure("failed", "failed episodes", "failures", column("failed"), of_all=True),
    Measure(
        "tool_failure_rate",
        "failed calls of tools",
        "failures",
        column("failed_calls"),
        column("calls"),
        of_all=True,
    ),
    Measure(
        "refused_calls",
        "refused calls of tools",
        "failures",
        column("refused_calls"),
        column("calls"),
        of_all=True,
    ),
    Measure("retries", "retries a question", "failures", column("retries"), share=False, of_all=True),
    _bound("em_if_failed_wrong", "EM, if all failed ones were wrong", 0.0),
    _bound("em_if_failed_right", "EM, if all failed ones were right", 1.0),
)


def measures_of(table: RunTable) -> tuple[Measure, ...]:
    """The figures above, and one for each term of the reward in the records, such as a judge's."""
    terms = []
    for name in table.terms:
        values = table.columns[name][~np.isnan(table.columns[name])]
        share = bool(((values >= 0) & (values <= 1)).all())
        label = f"{name.removeprefix(TERM)} (term)"
        terms.append(Measure(name, label, "scores", column(name), share=share))
    return (*MEASURES, *terms)


def by_source(table: RunTable, measures: Sequence[Measure]) -> tuple[dict[str, RatioSums], np.ndarray]:
    """The sums of each source for the bootstrap, and the number of episodes of each figure in each source,
    (sources, figures), in the order of the sources' names."""
    questions, places = table.asked()
    columns = {**table.columns, "failed": table.failed.astype(float)}
    numerators = np.empty((len(questions), len(measures)))
    denominators = np.empty_like(numerators)
    counts = np.empty_like(numerators)
    for i, measure in enumerate(measures):
        value = np.asarray(measure.value(columns), dtype=float)
        weight = np.ones_like(value) if measure.weight is None else measure.weight(columns)
        there = ~np.isnan(value) & ~np.isnan(weight)
        if not measure.of_all:
            there &= ~table.failed
        of = places[there]
        samples = np.bincount(of, minlength=len(questions))
        numerators[:, i] = np.bincount(of, value[there], len(questions)) / np.maximum(samples, 1)
        denominators[:, i] = np.bincount(of, weight[there], len(questions)) / np.maximum(samples, 1)
        counts[:, i] = samples
    sources = [source for source, _ in questions]
    names = sorted(set(sources))
    sums, episodes = {}, np.empty((len(names), len(measures)))
    for row, name in enumerate(names):
        here = [source == name for source in sources]
        sums[name] = RatioSums(numerators[here], denominators[here])
        episodes[row] = counts[here].sum(axis=0)
    return sums, episodes


def by_question(table: RunTable, measures: Sequence[Measure]) -> dict[tuple[str, str], np.ndarray]:
    """The values of each question, (figures,): the means over its samples; nan where it has none.

    Raises ValueError for a figure that is no mean over questions."""
    if weighted := [measure.name for measure in measures if measure.weight is not None]:
        raise ValueError(f"{', '.join(weighted)}: no mean over questions")
    sums, _ = by_source(table, measures)
    value = np.concatenate([one.numerators for one in sums.values()])
    there = np.concatenate([one.denominators for one in sums.values()]) > 0
    return dict(zip(table.asked()[0], np.where(there, value, np.nan), strict=True))
