"""Computes the comparison of several runs on their shared questions.

A question is compared if every run has at least one episode of it that has not failed. All other questions
are counted and left out, even of the runs' own values, so that all columns are about the same questions.
Samples of a question are averaged first.

    difference     the difference of the means, with the interval of the paired bootstrap (bootstrap.py)
    EM, cover-EM   McNemar's exact test for each source, if every question has one episode in each run; with
                   several samples per question, the permutation test
    F1, terms      the permutation test
    p_holm         Holm's correction over the data sources and the compared runs of one figure

The means over the sources and over all questions are tested by permutation. They are not part of the
correction, since each of them is a separate hypothesis.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from rag_r1.evaluation.report.bootstrap import DEFAULT_BOOTSTRAP, Bootstrap, Estimate, Estimates, RatioSums
from rag_r1.evaluation.report.episode_metrics import METRICS
from rag_r1.evaluation.report.measures import MEASURES, Measure, by_question, score, term_measure
from rag_r1.evaluation.report.published_results import in_paper_order
from rag_r1.evaluation.report.report import figure
from rag_r1.evaluation.report.run_table import QuestionKey, RunTable
from rag_r1.evaluation.report.significance import bootstrap_p, holm, mcnemar, permutation
from rag_r1.rewards.normalise import NormaliserName

#: A method of _FigureTests that tests run `i + 1` against the first run.
_Test = Callable[[int], dict[str, Any]]

#: Figures whose differences have an interval but no test.
_UNTESTED = ("formatted", "retrievals", "queries", "turns", "recall", "seconds", "generated_tokens")
#: Figures that are 0 or 1 for each episode.
_BINARY = ("em", "cover_em")


@dataclass(frozen=True)
class SharedQuestions:
    """The questions that are compared, and the numbers of those that are not."""

    #: The compared questions by source, in the papers' order.
    shared: dict[str, list[QuestionKey]]
    #: For each run, the number of its questions that not all runs have.
    unshared: list[int]
    #: For each run, the number of shared questions whose episodes have all failed in it.
    failed: list[int]
    #: Questions whose text or gold answers differ between runs, although their ids are equal.
    mismatched: list[QuestionKey]

    @property
    def count(self) -> int:
        """The number of questions that are compared."""
        return sum(map(len, self.shared.values()))


def shared_questions(tables: Sequence[RunTable]) -> SharedQuestions:
    """Return the questions that can be compared."""
    texts = [dict(zip(table.question_keys, table.questions, strict=True)) for table in tables]
    scored = [set(compress(table.question_keys, ~table.failed)) for table in tables]
    shared_keys = set(texts[0]).intersection(*texts[1:])
    mismatched = sorted(key for key in shared_keys if len({text[key] for text in texts}) > 1)
    common = sorted(shared_keys.intersection(*scored) - set(mismatched))
    names = in_paper_order(source for source, _ in common)
    return SharedQuestions(
        shared={name: [key for key in common if key[0] == name] for name in names},
        unshared=[len(set(text) - shared_keys) for text in texts],
        failed=[len(shared_keys - set(mismatched) - keys) for keys in scored],
        mismatched=mismatched,
    )


@dataclass(frozen=True)
class _SourceValues:
    """The values of all figures in all runs."""

    #: An array of shape (questions, figures, runs) for each source; nan where a run has no value.
    arrays: dict[str, np.ndarray]

    def sums(self, *, changes: bool) -> dict[str, RatioSums]:
        """Return the bootstrap's sums of the runs' values or, with `changes`, of their differences from the
        first run. A question that lacks a value in one run is left out for all runs."""
        sums = {}
        for source, values in self.arrays.items():
            terms = values[..., 1:] - values[..., :1] if changes else values
            is_measured = np.broadcast_to(~np.isnan(values).any(axis=2, keepdims=True), terms.shape)
            numerators = np.where(is_measured, terms, 0.0).reshape(len(values), -1)
            sums[source] = RatioSums(numerators, is_measured.astype(float).reshape(len(values), -1))
        return sums

    def measured(self, index: int) -> dict[str, np.ndarray]:
        """Return the values of figure number `index` by source, (questions, runs) each. Questions that lack a
        value in one run are left out, and sources that have no others."""
        values = {source: array[:, index] for source, array in self.arrays.items()}
        measured = {source: array[~np.isnan(array).any(axis=1)] for source, array in values.items()}
        return {source: array for source, array in measured.items() if len(array)}


def compare_tables(
    names: Sequence[str],
    tables: Sequence[RunTable],
    questions: SharedQuestions,
    normaliser: NormaliserName = "squad",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> dict[str, Any]:
    """Return the content of compare.json without the cards. All runs are compared with the first one."""
    measures = _measures(tables, normaliser)
    values = _values(tables, questions, measures)
    levels = bootstrap.estimates(
        values.sums(changes=False), [measure.share for measure in measures for _ in tables]
    )
    changes = bootstrap.estimates(values.sums(changes=True), [False] * (len(measures) * (len(tables) - 1)))
    single = all(_has_single_episodes(table, questions) for table in tables)
    figures = {}
    for index, measure in enumerate(measures):
        if figure_values := values.measured(index):
            tests = _FigureTests(measure.name, figure_values, single and measure.name in _BINARY, bootstrap)
            figures[measure.name] = _figure(measure, index, figure_values, levels, changes, tests)
    return {
        "format": 1,
        "runs": list(names),
        "normaliser": normaliser,
        "interval": {
            "kind": "paired percentile bootstrap, stratified by source, clustered by question",
            **bootstrap.description(),
        },
        "sources": list(questions.shared),
        "questions": {
            "compared": questions.count,
            "by_source": {name: len(keys) for name, keys in questions.shared.items()},
            "not_in_all_runs": questions.unshared,
            "failed": questions.failed,
            "another_question_under_the_same_id": len(questions.mismatched),
        },
        "figures": figures,
    }


def _measures(tables: Sequence[RunTable], normaliser: NormaliserName) -> list[Measure]:
    """Return the scores with the normaliser, the reward terms of all runs, and the untested figures."""
    scores = [replace(score(name, normaliser), name=name, label=score(name).label) for name in METRICS]
    shared_terms = set(tables[0].terms).intersection(*(table.terms for table in tables[1:]))
    terms = [term_measure(name, tables) for name in sorted(shared_terms)]
    by_name = {measure.name: measure for measure in MEASURES}
    return [*scores, *terms, *(by_name[name] for name in _UNTESTED)]


def _values(
    tables: Sequence[RunTable], questions: SharedQuestions, measures: Sequence[Measure]
) -> _SourceValues:
    """Return the values of the shared questions in all runs."""
    runs = [by_question(table, measures) for table in tables]
    return _SourceValues(
        {
            source: np.array([np.stack([values[key] for values in runs], axis=1) for key in keys])
            for source, keys in questions.shared.items()
        }
    )


def _has_single_episodes(table: RunTable, questions: SharedQuestions) -> bool:
    """Return whether a run has exactly one successful episode of each shared question."""
    scored = Counter(compress(table.question_keys, ~table.failed))
    return all(scored[key] == 1 for keys in questions.shared.values() for key in keys)


@dataclass(frozen=True)
class _FigureTests:
    """Tests one figure of the other runs against the first run. `i` is the index of a run among the others.
    Each method returns the entries of its test in compare.json: `test`, `p` and those of the test."""

    #: The name of the figure.
    name: str
    #: An array of shape (questions, runs) for each source.
    values: Mapping[str, np.ndarray]
    #: Whether all values are 0 or 1, so that McNemar's test can be used.
    binary: bool
    bootstrap: Bootstrap

    def test_source(self, source: str, i: int) -> dict[str, Any]:
        """Test the questions of one source."""
        first, second = self.values[source][:, 0], self.values[source][:, i + 1]
        if not self.binary:
            return self._permutation_test(source, i, second - first)
        only_first = int(((first == 1) & (second == 0)).sum())
        only_second = int(((first == 0) & (second == 1)).sum())
        p = mcnemar(only_first, only_second)
        return {"test": "mcnemar", "only_first": only_first, "only_second": only_second, "p": _rounded_p(p)}

    def test_mean(self, i: int) -> dict[str, Any]:
        """Test the mean over the sources."""
        sources = len(self.values)
        changes = [(array[:, i + 1] - array[:, 0]) / (len(array) * sources) for array in self.values.values()]
        return self._permutation_test("(mean)", i, np.concatenate(changes))

    def test_all(self, i: int) -> dict[str, Any]:
        """Test all questions together."""
        changes = [array[:, i + 1] - array[:, 0] for array in self.values.values()]
        return self._permutation_test("(all)", i, np.concatenate(changes))

    def _permutation_test(self, group: str, i: int, differences: np.ndarray) -> dict[str, Any]:
        """Test the questions' differences. The random draws depend only on the seed, the figure, the group
        and the run."""
        name = repr((self.name, group, i)).encode("utf-8", "surrogatepass")
        seed = int.from_bytes(hashlib.sha256(name).digest()[:8], "big")
        p = permutation(differences, np.random.default_rng([self.bootstrap.seed, seed]))
        return {"test": "permutation", "p": _rounded_p(p)}


def _figure(
    measure: Measure,
    index: int,
    values: Mapping[str, np.ndarray],
    levels: Estimates,
    changes: Estimates,
    tests: _FigureTests,
) -> dict[str, Any]:
    """Return the entry of a figure in compare.json: the runs' values and their differences from the first
    run, for each source, for the mean over the sources and for all questions.

    `values` are the figure's values by source, (questions, runs) each. `levels` and `changes` are the
    bootstrap's estimates of the values and of the differences of all figures, and `index` is the number of
    this figure among them."""
    tested = measure.section == "scores"
    runs = next(iter(values.values())).shape[1]
    level_columns = range(index * runs, (index + 1) * runs)
    change_columns = range(index * (runs - 1), (index + 1) * (runs - 1))

    def group(level: Estimate, change: Estimate, count: int, test: _Test) -> dict[str, Any]:
        """Return the entry of one group of `count` questions."""
        differences = []
        for i, column in enumerate(change_columns):
            difference = figure(change, column, count)
            if tested:
                p = bootstrap_p(float(change.value[column]), change.replicates[:, column])
                difference |= {**test(i), "p_bootstrap": _rounded_p(p)}
            differences.append(difference)
        values_of_runs = [figure(level, column, count) for column in level_columns]
        return {"values": values_of_runs, "differences": differences}

    groups = {
        name: group(level, changes.by_source[name], len(values[name]), partial(tests.test_source, name))
        for name, level in levels.by_source.items()
        if name in values
    }
    if tested:
        differences = [difference for entry in groups.values() for difference in entry["differences"]]
        adjusted = holm([difference["p"] for difference in differences])
        for difference, p in zip(differences, adjusted, strict=True):
            difference["p_holm"] = _rounded_p(p)
    count = sum(map(len, values.values()))
    return {
        "label": measure.label,
        "decimals": measure.decimals,
        "tested": tested,
        "sources": groups,
        "mean": group(levels.mean, changes.mean, count, tests.test_mean),
        "all": group(levels.overall, changes.overall, count, tests.test_all),
    }


def _rounded_p(p: float) -> float:
    """Round a p-value to six significant digits."""
    return float(f"{p:.6g}")
