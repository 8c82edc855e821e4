"""Selects training rows from scored candidates (Agentic-R's last step).

A round is a query with the retriever's candidates, each of which has two scores: GAC says whether the agent's
final answer was right with this passage alone, and LR how relevant the passage is to the query, from 0 to
100. `both` sorts candidates by GAC, then by LR; `relevance` and `correctness` (the ablations) sort by one of
them. Candidates with equal scores keep the retriever's order. A round is left out if it has no candidates, if
a candidate lacks a score that they are sorted by, if its best candidate has GAC 0 or an LR below
`least_relevance`, or if it has too few negatives (by default fewer than 15).

The mode `faithful` is the published rule:

    positives   candidates whose scores equal the best one's exactly, at most three; each makes a row
    negatives   15 drawn from all candidates with other scores, the same for all rows of the round

With this rule, a passage with GAC 1 and LR 95 is a negative beside one with GAC 1 and LR 100, so the
retriever is trained to rank useful passages low. The mode `safe` differs in two points:

    positives   also candidates with the best one's GAC and an LR at most `tolerance` below the best one's
    negatives   no candidate that is itself useful, which means a GAC above 0 and an LR of at least 60, or of
                `least_relevance` if that is lower; with a single score, that score alone decides

The drawn negatives depend only on the seed and the round, not on the other rounds.

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
#: The scores by which candidates are compared.
Utility = Literal["both", "relevance", "correctness"]
#: Why a round yields no rows: a key of REASONS.
Reason = Literal["not_correct", "not_relevant", "few_negatives", "no_candidates", "unscored"]

#: A passage with at least this LR counts as useful to the query, whatever LR the positives must have.
USEFUL = 60
#: The text of each reason; its key is that of the reason's count in summary.json.
REASONS: dict[Reason, str] = {
    "not_correct": "no candidate leads to a right answer",
    "not_relevant": "the best candidate is not relevant enough",
    "few_negatives": "too few candidates can be negatives",
    "no_candidates": "the search found nothing",
    "unscored": "a score is missing",
}


@dataclass(frozen=True)
class ScoredCandidate:
    """A passage with its scores, which are None if they were not measured."""

    passage_id: str
    #: GAC, from 0 to 1.
    correctness: float | None = None
    #: LR, from 0 to 100.
    relevance: int | None = None

    @property
    def utility(self) -> PassageUtility:
        """The scores in the form of a training row."""
        return PassageUtility(em=self.correctness or 0.0, local_utility=(self.relevance or 0) / 100)


@dataclass(frozen=True)
class QueryRound:
    """A query with its scored candidates."""

    dataset: str
    query_id: str
    question: str
    round_index: int
    history_queries: tuple[str, ...]
    query_text: str
    #: The candidates in the retriever's order.
    candidates: tuple[ScoredCandidate, ...]
    #: The thought before the query; None if it is not known.
    reasoning: str | None = None


@dataclass(frozen=True)
class SelectionRule:
    """The parameters of the rule by which rows are selected."""

    mode: RuleMode = "safe"
    #: The scores that are compared.
    use: Utility = "both"
    seed: int = 0
    #: Least LR of a positive, from 0 to 100.
    least_relevance: int = USEFUL
    #: Largest difference in LR to the best candidate at which `safe` still sees a tie.
    tolerance: int = 5
    #: Most positives of a round; each makes a row.
    most_positives: int = 3
    #: Number of negatives of each row.
    negatives: int = 15

    def is_scored(self, candidate: ScoredCandidate) -> bool:
        """Return whether the candidate has the scores that the rule reads."""
        return (self.use == "relevance" or candidate.correctness is not None) and (
            self.use == "correctness" or candidate.relevance is not None
        )


@dataclass
class RowSelection:
    """Selects the rows of many rounds, and counts them."""

    rule: SelectionRule
    rounds: int = 0
    rows: int = 0
    #: Number of rounds without a row, by reason.
    excluded: Counter[Reason] = field(default_factory=Counter)

    def select(self, rounds: Iterable[QueryRound]) -> Iterator[TrainingRow]:
        """Yield the rows of these rounds, in order. Raises ValueError for a candidate that is named
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
        """Return the counts of rows and of rounds without rows, as lines of text."""
        lines = [f"training rows: {self.rows:,} of {self.rounds - self.excluded.total():,} rounds"]
        excluded = sorted(self.excluded.items())
        return lines + [f"  left out: {count:,} rounds, {REASONS[reason]}" for reason, count in excluded]


def rows_of(query: QueryRound, rule: SelectionRule) -> list[TrainingRow] | Reason:
    """Return the rows of a round, or the reason why it has none. Raises ValueError for a candidate that is
    named twice."""
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
    """Return the scores by which the rule sorts, the most important one first."""
    correctness, relevance = candidate.correctness or 0.0, float(candidate.relevance or 0)
    scores = {"both": [correctness, relevance], "relevance": [relevance], "correctness": [correctness]}
    return scores[rule.use]


def _is_positive(candidate: ScoredCandidate, best: ScoredCandidate, rule: SelectionRule) -> bool:
    """Return whether a candidate counts as a positive, given the best candidate of its round."""
    if rule.mode == "faithful" or rule.use == "correctness":
        return _scores(candidate, rule) == _scores(best, rule)
    if rule.use == "both" and candidate.correctness != best.correctness:
        return False
    least_relevance = max((best.relevance or 0) - rule.tolerance, rule.least_relevance)
    return (candidate.relevance or 0) >= least_relevance


def _is_negative(candidate: ScoredCandidate, best: ScoredCandidate, rule: SelectionRule) -> bool:
    """Return whether a candidate may be drawn as a negative, given the best candidate of its round."""
    if rule.mode == "faithful":
        return _scores(candidate, rule) != _scores(best, rule)
    is_correct = rule.use == "relevance" or bool(candidate.correctness)
    least_relevance = min(rule.least_relevance, USEFUL)
    is_relevant = rule.use == "correctness" or (candidate.relevance or 0) >= least_relevance
    return not (is_correct and is_relevant)


def _draw_negatives(
    ranked: Sequence[ScoredCandidate], query: QueryRound, rule: SelectionRule
) -> list[ScoredCandidate]:
    """Draw as many negatives as the rule says, and return them in the order of `ranked`."""

    def fraction(candidate: ScoredCandidate) -> float:
        key = json.dumps([query.dataset, query.query_id, query.round_index, candidate.passage_id])
        return seeded_fraction(rule.seed, "negatives", key)

    drawn = {candidate.passage_id for candidate in sorted(ranked, key=fraction)[: rule.negatives]}
    return [candidate for candidate in ranked if candidate.passage_id in drawn]


def _row(query: QueryRound, passages: Sequence[ScoredCandidate]) -> TrainingRow:
    """Return the row of a query with these passages, the positive one first."""
    # The other fields of a round are also fields of a row.
    values = {name: value for name, value in vars(query).items() if name != "candidates"}
    return TrainingRow(
        **values,
        passage_ids=tuple(passage.passage_id for passage in passages),
        scores=tuple(passage.utility for passage in passages),
    )
