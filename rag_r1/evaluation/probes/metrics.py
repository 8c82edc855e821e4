"""Computes the figures of the probe suite from its runs. The verdict on them is that of verdict.py.

The figures of a group of questions (all, a data source, a kind of question) are means over its questions,
each with a bootstrap interval (rag_r1/evaluation/report/bootstrap.py). A condition is compared with the real
run on the questions that both have, with an interval for each figure:

    difference   EM of the condition - EM of the real run
    over_half    EM of the condition - half of the EM of the real run
    real_there   EM of the real run on these questions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.probes.verdict import REAL, verdict
from rag_r1.evaluation.report.bootstrap import DEFAULT_BOOTSTRAP, Bootstrap, RatioSums
from rag_r1.evaluation.report.measures import MEASURES, by_question
from rag_r1.evaluation.report.published_results import in_paper_order, labels
from rag_r1.evaluation.report.report import figure
from rag_r1.evaluation.report.run_table import QuestionKey, RunTable

#: The figures of each condition, as rag_r1/evaluation/report/measures.py names them. Conditions are compared
#: by the first one.
_FIGURES = ("em", "answered", "queries")
_MEASURES = tuple(measure for name in _FIGURES for measure in MEASURES if measure.name == name)


@dataclass(frozen=True)
class ConditionRun:
    """The figures of one condition's run."""

    #: An array of shape (figures,) for each question that has not failed.
    values: dict[QuestionKey, np.ndarray]
    #: The number of episodes, of which a question has several with --samples.
    episodes: int
    #: The number of failed episodes.
    failed: int

    @classmethod
    def of(cls, table: RunTable) -> ConditionRun:
        """Return the figures in the table of a run's records."""
        values = {key: row for key, row in by_question(table, _MEASURES).items() if not np.isnan(row[0])}
        return cls(values, len(table.failed), int(table.failed.sum()))


def figures(
    runs: Mapping[str, ConditionRun], rows: Sequence[QuestionRow], bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> dict[str, Any]:
    """Return the conditions with their figures, and the verdict, as search_card.json has them. `runs` has
    the run of each condition, including the real run; `rows` are the questions."""
    groups = groups_of(rows)
    all_questions = groups.pop("all")
    conditions = {
        name: {
            "questions": len(run.values),
            "episodes": run.episodes,
            "failed": run.failed,
            **_means(run, all_questions, bootstrap),
            "groups": {group: _means(run, keys, bootstrap)["em"] for group, keys in groups.items()},
            **({} if name == REAL else _comparison(run, runs[REAL], bootstrap)),
        }
        for name, run in runs.items()
    }
    return {"format": 1, "interval": bootstrap.description(), "conditions": conditions, **verdict(conditions)}


def groups_of(rows: Iterable[QuestionRow]) -> dict[str, list[QuestionKey]]:
    """Return the questions of each group: `all`, each data source in the papers' order, and each kind of
    question. A group with the same questions as an earlier one is left out, and one with the same name is
    numbered."""
    sources: dict[str, list[QuestionKey]] = {}
    kinds: dict[str, list[QuestionKey]] = {}
    for row in rows:
        key = (row.data_source, row.id)
        sources.setdefault(row.data_source, []).append(key)
        if kind := kind_of(row):
            kinds.setdefault(kind, []).append(key)
    names = labels(sources)
    groups = {"all": [key for keys in sources.values() for key in keys]}
    candidates = [(names[source], sources[source]) for source in in_paper_order(sources)]
    for name, keys in [*candidates, *sorted(kinds.items())]:
        if set(keys) not in map(set, groups.values()):
            groups[f"{name} (2)" if name in groups else name] = keys
    return groups


def kind_of(row: QuestionRow) -> str:
    """Return the kind of question that the row's metadata name, or else `N hops` if they have the number of
    hops; an empty text without either."""
    kind = row.metadata.get("kind") or row.metadata.get("question_type") or ""
    hops = row.metadata.get("hops")
    return f"{hops} hops" if hops and not kind else str(kind)


def _means(run: ConditionRun, keys: Iterable[QuestionKey], bootstrap: Bootstrap) -> dict[str, Any]:
    """Return the means of a run's figures over the questions `keys`, by name."""
    values = {key: run.values[key] for key in keys if key in run.values}
    estimates = _estimates(values, [measure.share for measure in _MEASURES], bootstrap)
    return dict(zip(_FIGURES, estimates, strict=True))


def _comparison(run: ConditionRun, real: ConditionRun, bootstrap: Bootstrap) -> dict[str, Any]:
    """Return both differences from the real run, and the EM of the real run, on the questions of both."""
    pairs = {key: (row[0], real.values[key][0]) for key, row in run.values.items() if key in real.values}
    differences = {key: np.array([em - real_em, em - real_em / 2]) for key, (em, real_em) in pairs.items()}
    difference, over_half = _estimates(differences, [False, False], bootstrap)
    real_ems = {key: np.array([real_em]) for key, (_, real_em) in pairs.items()}
    [real_em_estimate] = _estimates(real_ems, [True], bootstrap)
    return {"difference": difference, "over_half": over_half, "real_there": real_em_estimate}


def _estimates(
    values: Mapping[QuestionKey, np.ndarray], shares: Sequence[bool], bootstrap: Bootstrap
) -> list[dict[str, Any]]:
    """Return the mean of each column with its interval. Questions are resampled within their sources.
    `shares` says for each column whether its values are between 0 and 1."""
    if not values:
        return [{"value": None, "low": None, "high": None, "questions": 0} for _ in shares]
    by_source: dict[str, list[np.ndarray]] = {}
    for (source, _), row in sorted(values.items(), key=lambda item: item[0]):
        by_source.setdefault(source, []).append(row)
    sums = {name: RatioSums.of_means(np.array(rows, dtype=float)) for name, rows in by_source.items()}
    _, _, overall = bootstrap.estimates(sums, shares)
    return [figure(overall, i, len(values)) for i in range(len(shares))]
