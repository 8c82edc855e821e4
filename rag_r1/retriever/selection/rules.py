"""Selects training rows from scored candidates (Agentic-R's last step).

A round is a query with the retriever's candidates, each with two utilities: GAC, whether the agent's final
answer was right with this passage alone, and LR, how relevant the passage is to the query, from 0 to 100.
`both` sorts candidates by GAC, then by LR; `relevance` and `correctness` (the ablations) by one of them.
Among equals the retriever's order holds. A round is left out if the best candidate has GAC 0, or LR below
`least_relevance`, or if fewer than 15 negatives are left.

`faithful` is the published rule:

    positives   candidates whose scores equal the best one's exactly, at most three; each makes a row
    negatives   15 drawn from all candidates with other scores, the same for all rows of the round

So a passage with GAC 1 and LR 95 is a negative beside one with GAC 1 and LR 100, and the retriever is trained
to rank useful passages low. `safe` differs in two points:

    positives   also those whose LR is at most `tolerance` below the best one's, with the same GAC
    negatives   none that is itself useful: with a GAC above 0 and LR from 60 on, or from `least_relevance` if
                that is less (of one utility alone: by that)

Which negatives are drawn depends on the seed and the round alone, not on what else is selected.

Source: Agentic-R (arXiv 2601.11888) and its code, 8421BCD/Agentic-R, step 4, which draws without a seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rag_r1.retriever.records import PassageUtility, TrainingRow
from rag_r1.rollouts.requests import seeded_fraction

RuleMode = Literal["faithful", "safe"]
Use = Literal["both", "relevance", "correctness"]

#: LR from which a passage is useful to the query, however relevant the positives are to be.
USEFUL = 60
#: Why rounds give no rows.
REASONS = {
    "not_correct": "no candidate leads to a right answer",
    "not_relevant": "the best candidate is not relevant enough",
    "few_negatives": "too few candidates can be negatives",
    "no_candidates": "the search found nothing",
    "unscored": "a score is missing",
}


@dataclass(frozen=True)
class ScoredCandidate:
    """A passage with its scores. `correctness`: GAC, 0 to 1; `relevance`: LR, 0 to 100; None: not
    measured."""

    passage_id: str
    correctness: float | None = None
    relevance: int | None = None

    @property
    def utility(self) -> PassageUtility:
        """The scores as a training row has them."""
        return PassageUtility(em=self.correctness or 0.0, local_utility=(self.relevance or 0) / 100)


@dataclass(frozen=True)
class QueryRound:
    """A query with its candidates, in the retriever's order. `reasoning`: the thought before the query, None
    if it is not known."""

    dataset: str
    query_id: str
    question: str
    round_index: int
    history_queries: tuple[str, ...]
    query_text: str
    candidates: tuple[ScoredCandidate, ...]
    reasoning: str | None = None


@dataclass(frozen=True)
class SelectionRule:
    """How rows are selected. `use`: the scores that are compared; `least_relevance`: least LR of a positive;
    `tolerance`: points of LR below the best one's at which `safe` sees a tie; `most_positives` and
    `negatives`: of a round."""

    mode: RuleMode = "safe"
    use: Use = "both"
    seed: int = 0
    least_relevance: int = USEFUL
    tolerance: int = 5
    most_positives: int = 3
    negatives: int = 15

    def is_scored(self, candidate: ScoredCandidate) -> bool:
        """Whether the candidate has the scores that the rule reads."""
        return (self.use == "relevance" or candidate.correctness is not None) and (
            self.use == "correctness" or candidate.relevance is not None
        )


@dataclass
class RowSelection:
    """Selects the rows of many rounds, and counts rounds, rows, and, by the reason, the rounds without a row
    (`excluded`)."""

    rule: SelectionRule
    rounds: int = 0
    rows: int = 0
    excluded: Counter[str] = field(default_factory=Counter)

    def of(self, rounds: Iterable[QueryRound]) -> Iterator[TrainingRow]:
        """Yields the rows of these rounds, in order. Raises ValueError for a candidate that is named
        twice."""
        for query in rounds:
            self.rounds += 1
            rows_or_reason = rows_of(query, self.rule)
            if isinstance(rows_or_reason, str):
                self.excluded[rows_or_reason] += 1
            else:
                self.rows += len(rows_or_reason)
                yield from rows_or_reason

    def lines(self) -> list[str]:
        """The counts of rows and of rounds without one, as lines of text."""
        lines = [f"training rows: {self.rows:,} of {self.rounds - self.excluded.total():,} rounds"]
        excluded = sorted(self.excluded.items())
        return lines + [f"  left out: {count:,} rounds, {REASONS[reason]}" for reason, count in excluded]


def rows_of(query: QueryRound, rule: SelectionRule) -> list[TrainingRow] | str:
    """The rows of a round, or the reason (of REASONS) why there are none. Raises ValueError for a candidate
    that is named twice."""
    if len({candidate.passage_id for candidate in query.candidates}) < len(query.candidates):
        raise ValueError(f"{query.query_id}, round {query.round_index}: a candidate is named twice")
    if not query.candidates:
        return "no_candidates"
    if not all(map(rule.is_scored, query.candidates)):
        return "unscored"
    ranked = sorted(query.candidates, key=lambda candidate: [-score for score in _scores(candidate, rule)])
    best = ranked[0]
    if rule.use != "relevance" and not best.correctness:
        return "not_correct"
    if rule.use != "correctness" and (best.relevance or 0) < rule.least_relevance:
        return "not_relevant"
    positives = [candidate for candidate in ranked if _is_positive(candidate, best, rule)]
    possible_negatives = [candidate for candidate in ranked if _is_negative(candidate, best, rule)]
    if len(possible_negatives) < rule.negatives:
        return "few_negatives"
    negatives = _draw_negatives(possible_negatives, query, rule)
    return [_row(query, [positive, *negatives]) for positive in positives[: rule.most_positives]]


def _scores(candidate: ScoredCandidate, rule: SelectionRule) -> list[float]:
    """The scores by which the rule sorts, the most important first."""
    correctness, relevance = candidate.correctness or 0.0, float(candidate.relevance or 0)
    scores = {"both": [correctness, relevance], "relevance": [relevance], "correctness": [correctness]}
    return scores[rule.use]


def _is_positive(candidate: ScoredCandidate, best: ScoredCandidate, rule: SelectionRule) -> bool:
    """Whether a candidate is a positive beside the best one."""
    if rule.mode == "faithful" or rule.use == "correctness":
        return _scores(candidate, rule) == _scores(best, rule)
    if rule.use == "both" and candidate.correctness != best.correctness:
        return False
    least_relevance = max((best.relevance or 0) - rule.tolerance, rule.least_relevance)
    return (candidate.relevance or 0) >= least_relevance


def _is_negative(candidate: ScoredCandidate, best: ScoredCandidate, rule: SelectionRule) -> bool:
    """Whether a candidate may be a negative of the best one."""
    if rule.mode == "faithful":
        return _scores(candidate, rule) != _scores(best, rule)
    is_correct = rule.use == "relevance" or bool(candidate.correctness)
    least_relevance = min(rule.least_relevance, USEFUL)
    is_relevant = rule.use == "correctness" or (candidate.relevance or 0) >= least_relevance
    return not (is_correct and is_relevant)


def _draw_negatives(
    ranked: Sequence[ScoredCandidate], query: QueryRound, rule: SelectionRule
) -> list[ScoredCandidate]:
    """Draw as many negatives as the rule says; returns them in the order of `ranked`."""

    def fraction(candidate: ScoredCandidate) -> float:
        key = json.dumps([query.dataset, query.query_id, query.round_index, candidate.passage_id])
        return seeded_fraction(rule.seed, "negatives", key)

    negatives = {candidate.passage_id for candidate in sorted(ranked, key=fraction)[: rule.negatives]}
    return [candidate for candidate in ranked if candidate.passage_id in negatives]


def _row(query: QueryRound, passages: Sequence[ScoredCandidate]) -> TrainingRow:
    """The row of a query with these passages, the positive one first."""
    values = {name: value for name, value in vars(query).items() if name != "candidates"}
    return TrainingRow(
        **values,
        passage_ids=tuple(passage.passage_id for passage in passages),
        scores=tuple(passage.utility for passage in passages),
    )
