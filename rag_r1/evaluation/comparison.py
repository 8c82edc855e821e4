"""The comparison of runs on the questions that all of them have.

A question counts if every run has at least one episode of it that has not failed; the others are counted
and left out of everything, also of the runs' own values, so all columns are about the same questions.
Samples of a question are averaged first.

    difference   of the means, with the interval of the paired bootstrap (bootstrap.py)
    EM, cover-EM McNemar's exact test of each source, if every question has one episode in both runs; with
                 several samples a question is no longer right or wrong, and it is the permutation test
    F1, terms    permutation test
    p_holm       corrected over the data sources and the compared runs of one figure

The means over sources and over all questions are tested by permutation and are not part of the correction:
each is one hypothesis of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_r1.evaluation.bootstrap import Bootstrap, Estimate, Sums
from rag_r1.evaluation.measures import MEASURES, Measure, by_question, column, measures_of, score
from rag_r1.evaluation.report import figure
from rag_r1.evaluation.run_table import RunTable
from rag_r1.evaluation.significance import bootstrap_p, holm, mcnemar, permutation
from rag_r1.evaluation.sources import in_order
from rag_r1.rewards.normalise import NormaliserName

#: Data source and question id.
Asked = tuple[str, str]
#: The test of the run `i + 1` against the first.
_Test = Callable[[int], dict[str, Any]]

#: Figures whose differences have an interval and no test.
_COSTS = ("formatted", "retrievals", "queries", "turns", "recall", "seconds", "generated_tokens")
_BINARY = ("em", "cover_em")


@dataclass(frozen=True)
class Questions:
    """The questions that all runs have and none has lost, by source in the papers' order; and, for each run,
    how many others it has. `mismatched`: the same id, but another question or other gold answers."""

    shared: dict[str, list[Asked]]
    only: list[int]
    failed: list[int]
    mismatched: list[Asked]

    @property
    def count(self) -> int:
        """How many are compared."""
        return sum(map(len, self.shared.values()))


def shared_questions(tables: Sequence[RunTable]) -> Questions:
    """Which questions can be compared."""
    texts = [dict(zip([key[:2] for key in t.keys], t.questions, strict=True)) for t in tables]
    scored = [{key[:2] for key, failed in zip(t.keys, t.failed, strict=True) if not failed} for t in tables]
    everywhere = set(texts[0]).intersection(*texts[1:])
    other = sorted(asked for asked in everywhere if len({text[asked] for text in texts}) > 1)
    kept = sorted(everywhere.intersection(*scored) - set(other))
    names = in_order(source for source, _ in kept)
    return Questions(
        shared={name: [asked for asked in kept if asked[0] == name] for name in names},
        only=[len(set(text) - everywhere) for text in texts],
        failed=[len((everywhere - set(other)) - answered) for answered in scored],
        mismatched=other,
    )


def compared(
    names: Sequence[str],
    tables: Sequence[RunTable],
    questions: Questions,
    normaliser: NormaliserName = "squad",
    bootstrap: Bootstrap | None = None,
) -> dict[str, Any]:
    """The content of compare.json but for the cards. The others are compared with the first run."""
    bootstrap = bootstrap or Bootstrap()
    figures = {}
    for measure in _measures(tables, normaliser):
        values = _values(tables, questions, measure)
        if values is not None:
            once = measure.name in _BINARY and all(_one_episode_each(t, questions) for t in tables)
            figures[measure.name] = _figure(measure, values, once, bootstrap)
    return {
        "format": 1,
        "runs": list(names),
        "normaliser": normaliser,
        "interval": {
            "kind": "paired percentile bootstrap, stratified by source, clustered by question",
            "level": bootstrap.level,
            "resamples": bootstrap.resamples,
            "seed": bootstrap.seed,
        },
        "sources": list(questions.shared),
        "questions": {
            "compared": questions.count,
            "by_source": {name: len(of) for name, of in questions.shared.items()},
            "not_in_all_runs": questions.only,
            "failed": questions.failed,
            "another_question_under_the_same_id": len(questions.mismatched),
        },
        "figures": figures,
    }


def _measures(tables: Sequence[RunTable], normaliser: NormaliserName) -> list[Measure]:
    """The scores with this normaliser, the terms that all runs have, and the costs."""
    scores = [
        Measure(name, score(name).label, "scores", column(f"{name}:{normaliser}"))
        for name in (*_BINARY, "f1")
    ]
    terms = [measure for measure in measures_of(tables[0]) if measure not in MEASURES]
    everywhere = set(tables[0].terms).intersection(*(table.terms for table in tables[1:]))
    terms = [measure for measure in terms if measure.name in everywhere]
    by_name = {measure.name: measure for measure in MEASURES}
    return [*scores, *terms, *(by_name[name] for name in _COSTS)]


def _values(
    tables: Sequence[RunTable], questions: Questions, measure: Measure
) -> dict[str, np.ndarray] | None:
    """The values of each source's questions, (questions, runs); of those that have one in all runs. None if
    there are none."""
    every = [by_question(table, measure) for table in tables]
    found = {}
    for source, asked in questions.shared.items():
        known = [one for one in asked if all(one in values for values in every)]
        if known:
            found[source] = np.array([[values[one] for values in every] for one in known])
    return found or None


def _one_episode_each(table: RunTable, questions: Questions) -> bool:
    scored = Counter(key[:2] for key, failed in zip(table.keys, table.failed, strict=True) if not failed)
    return all(scored[asked] == 1 for of in questions.shared.values() for asked in of)


def _figure(
    measure: Measure, values: Mapping[str, np.ndarray], once: bool, bootstrap: Bootstrap
) -> dict[str, Any]:
    """A figure of compare.json: for each source, the mean and all questions, the runs' values and their
    differences from the first run."""
    runs = next(iter(values.values())).shape[1]
    count = sum(map(len, values.values()))
    moves = {source: of[:, 1:] - of[:, :1] for source, of in values.items()}
    levels = bootstrap.estimates(
        {source: Sums.of_means(of) for source, of in values.items()}, [measure.share] * runs
    )
    changes = bootstrap.estimates(
        {source: Sums.of_means(of) for source, of in moves.items()}, [False] * (runs - 1)
    )
    tested = measure.section == "scores"

    def group(level: Estimate, change: Estimate, questions: int, test: _Test) -> dict[str, Any]:
        return {
            "values": [figure(level, i, questions) for i in range(runs)],
            "differences": [
                figure(change, i, questions)
                | (test(i) | {"p_bootstrap": _p(_bootstrap_p(change, i))} if tested else {})
                for i in range(runs - 1)
            ],
        }

    def of_source(source: str) -> _Test:
        return lambda i: _test_of_source(measure, source, values[source], i, once, bootstrap)

    def together(name: str, weights: Mapping[str, float]) -> _Test:
        def test(i: int) -> dict[str, Any]:
            weighted = np.concatenate([of[:, i] * weights[source] for source, of in moves.items()])
            p = permutation(weighted, _rng(bootstrap, measure.name, name, i))
            return {"test": "permutation", "p": _p(p)}

        return test

    groups = {
        source: group(levels[0][source], changes[0][source], len(of), of_source(source))
        for source, of in values.items()
    }
    if tested:
        _correct([told for one in groups.values() for told in one["differences"]])
    equal = {source: 1 / (len(of) * len(values)) for source, of in values.items()}
    return {
        "label": measure.label,
        "decimals": measure.decimals,
        "tested": tested,
        "sources": groups,
        "mean": group(levels[1], changes[1], count, together("mean", equal)),
        "all": group(levels[2], changes[2], count, together("all", dict.fromkeys(values, 1 / count))),
    }


def _test_of_source(
    measure: Measure, source: str, values: np.ndarray, i: int, once: bool, bootstrap: Bootstrap
) -> dict[str, Any]:
    """The test of the run `i + 1` against the first on one source."""
    first, second = values[:, 0], values[:, i + 1]
    if not once:
        p = permutation(second - first, _rng(bootstrap, measure.name, source, i))
        return {"test": "permutation", "p": _p(p)}
    only_first = int(((first == 1) & (second == 0)).sum())
    only_second = int(((first == 0) & (second == 1)).sum())
    return {
        "test": "mcnemar",
        "only_first": only_first,
        "only_second": only_second,
        "p": _p(mcnemar(only_first, only_second)),
    }


def _bootstrap_p(change: Estimate, i: int) -> float:
    return bootstrap_p(float(change.value[i]), change.replicates[:, i])


def _correct(told: Sequence[dict[str, Any]]) -> None:
    """Add Holm's p-values to the tests of one figure."""
    for one, p in zip(told, holm([one["p"] for one in told]), strict=True):
        one["p_holm"] = _p(p)


def _p(p: float) -> float:
    """Six significant digits."""
    return float(f"{p:.6g}")


def _rng(bootstrap: Bootstrap, *what: Any) -> np.random.Generator:
    """Draws that depend on the seed and on what is tested, and on nothing else."""
    digest = hashlib.sha256(repr(what).encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([bootstrap.seed, int.from_bytes(digest[:8], "big")])
