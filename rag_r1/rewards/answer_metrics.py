"""Metrics of one answer: exact match, F1 and cover exact match.

The same functions score training and evaluation. Each returns the best value over all gold answers, and 0
without an answer. `prediction` is None if there was no answer, and `golds` is anything that `as_golds` reads.
An unknown `normaliser` raises a ValueError that lists those of normalise.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rag_r1.rewards.normalise import NormaliserName, comparable

#: Answers that are compared as a whole.
_UNSPLIT_ANSWERS = frozenset({"yes", "no", "noanswer"})


def exact_match(prediction: str | None, golds: Any, *, normaliser: NormaliserName = "squad") -> float:
    """Return 1.0 if the prediction equals a gold after normalisation (Rajpurkar et al., 2016), else 0.0."""
    return float(any(answer == gold for answer, gold in comparable(prediction, golds, normaliser)))


def token_f1(prediction: str | None, golds: Any, *, normaliser: NormaliserName = "squad") -> float:
    """Return the harmonic mean of token precision and recall, from 0 to 1.

    As in the scripts of HotpotQA, R1-Searcher and FlashRAG, yes / no / noanswer are compared as a whole: "yes
    or no" earns nothing if the gold is "yes", so hedging does not pay.
    """
    return max((_f1(answer, gold) for answer, gold in comparable(prediction, golds, normaliser)), default=0.0)


def _f1(answer: str, gold: str) -> float:
    """Return the token F1 of two normalised texts, neither of which is empty."""
    if answer != gold and (answer in _UNSPLIT_ANSWERS or gold in _UNSPLIT_ANSWERS):
        return 0.0
    answer_tokens, gold_tokens = answer.split(), gold.split()
    common = sum((Counter(answer_tokens) & Counter(gold_tokens)).values())
    return 2 * common / (len(answer_tokens) + len(gold_tokens))


def cover_exact_match(
    prediction: str | None, golds: Any, *, ordered: bool = False, normaliser: NormaliserName = "squad"
) -> float:
    """Return 1.0 if the prediction contains a gold, else 0.0.

    By default every token of the gold must occur somewhere in the prediction. This is R1-Searcher's
    definition, on which its published figures are based, together with its normaliser. With `ordered` the
    tokens must be consecutive. Tokens are always compared whole: "India" does not cover "Ind".
    """
    pairs = comparable(prediction, golds, normaliser)
    return float(any(_covers(answer, gold, ordered) for answer, gold in pairs))


def _covers(answer: str, gold: str, ordered: bool) -> bool:
    """Whether `answer` has all tokens of `gold`; with `ordered`, one after another. Both are normalised."""
    if ordered:
        return f" {gold} " in f" {answer} "
    return set(gold.split()) <= set(answer.split())
