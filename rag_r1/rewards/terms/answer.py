"""Reward terms that compare the final answer with the golds, and terms on how it was found.

They read `trajectory.answer`, which the agent core takes from an answer turn of the policy. So neither an
example in the prompt nor an `<answer>` inside a document can earn anything. `normaliser` sets how answers are
compared (rag_r1/rewards/normalise.py): `squad`, or `r1_searcher` as in the rewards and figures of that
project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.rewards.answer_metrics import cover_exact_match, exact_match, token_f1
from rag_r1.rewards.normalise import NormaliserName
from rag_r1.rewards.registry import register, zero_to_one


@register("em", values=zero_to_one)
def em(trajectory: Trajectory, golds: list[str], *, normaliser: NormaliserName = "squad") -> float:
    """Return 1 if the answer equals a gold answer (exact match), else 0. This is RAG-R1's only reward."""
    return exact_match(trajectory.answer, golds, normaliser=normaliser)


@register("f1", values=zero_to_one)
def f1(trajectory: Trajectory, golds: list[str], *, normaliser: NormaliserName = "squad") -> float:
    """Return the token F1 of the answer and the most similar gold answer, from 0 to 1. Yes and no are
    compared as a whole."""
    return token_f1(trajectory.answer, golds, normaliser=normaliser)


def _cover_values(*, wrong: float = 0.0, **options: object) -> tuple[float, float]:
    """Return the range of `cover_em`, whose values are 1 and `wrong`."""
    return min(wrong, 1.0), max(wrong, 1.0)


@register("cover_em", values=_cover_values)
def cover_em(
    trajectory: Trajectory,
    golds: list[str],
    *,
    ordered: bool = False,
    wrong: float = 0.0,
    normaliser: NormaliserName = "squad",
) -> float:
    """Return 1 if the answer contains a gold answer, with `ordered` as consecutive words, else `wrong`. Long
    answers can contain anything, so give this term a small weight."""
    return cover_exact_match(trajectory.answer, golds, ordered=ordered, normaliser=normaliser) or wrong


def _separator_faults(options: Mapping[str, Any], key: str) -> list[str]:
    """Return the fault of an empty separator, at which no text can be split."""
    return [f"{key}.separator must not be empty"] if options.get("separator") == "" else []


@register("each_answer", check=_separator_faults, values=zero_to_one)
def each_answer(
    trajectory: Trajectory, golds: list[str], *, normaliser: NormaliserName = "squad", separator: str = ";"
) -> float:
    """Return the share of right answers in a row of N questions, whose answers are written as `a1; a2; ...`.

        golds ["Rome; Paris"], answer "Rome; Lyon" -> 0.5

    Each answer is compared with the aliases that the gold answers have at its position. A wrong number of
    answers scores 0. For a single question, whose gold answers have no separator, this is the same as `em`.
    Gold answers in which an alias contains the separator are not used, unless all of them do.
    """
    gold_parts = [[part.strip() for part in gold.split(separator)] for gold in golds]
    answers = [part.strip() for part in (trajectory.answer or "").split(separator)]
    n_answers = min(map(len, gold_parts), default=0)
    if len(answers) != n_answers:
        return 0.0
    aliases_by_position = zip(*(parts for parts in gold_parts if len(parts) == n_answers), strict=True)
    scores = [
        exact_match(answer, list(dict.fromkeys(aliases_of_answer)), normaliser=normaliser)
        for answer, aliases_of_answer in zip(answers, aliases_by_position, strict=True)
    ]
    return sum(scores) / n_answers


@register("searched", values=zero_to_one)
def searched(trajectory: Trajectory, golds: list[str]) -> float:
    """Return 1 if the policy searched, else 0. This is R1-Searcher's retrieval reward, which teaches to
    search at all."""
    return float(trajectory.n_searches > 0)


@register("turn_cost")
def turn_cost(trajectory: Trajectory, golds: list[str], *, normaliser: NormaliserName = "squad") -> float:
    """Return the number of turns if the answer is right (EM), else 0. Give this term a small negative weight.

    Of two right trajectories the shorter one then scores higher, which rewards several queries in one turn. A
    wrong trajectory costs nothing, so giving up early never pays.
    """
    return len(trajectory.turns) * exact_match(trajectory.answer, golds, normaliser=normaliser)


@register("repeat_cost")
def repeat_cost(trajectory: Trajectory, golds: list[str], *, normaliser: NormaliserName = "squad") -> float:
    """Return the number of repeated queries if the answer is right (EM), else 0. Give this term a small
    negative weight.

    A repeated query finds nothing new. As with `turn_cost`, a wrong trajectory costs nothing.
    """
    return trajectory.n_repeated_queries * exact_match(trajectory.answer, golds, normaliser=normaliser)
