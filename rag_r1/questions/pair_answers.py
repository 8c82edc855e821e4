"""Splits the answers of `both` questions, which name two facts: "Karlen Ford and Velfas Hill".

Between the facts stands a comma, a semicolon, or the word for "and". A name may contain such a word itself
("Procter and Gamble"), so `splits` returns all ways to divide an answer; which of them is meant is decided by
the passages (`facts_in`) or by the gold facts (readings.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations, product

from rag_r1.data.answer_forms import answer_forms
from rag_r1.rewards import cover_exact_match, normalise

#: The word for "and" in the languages of `LANGUAGES` (rag_r1/data/languages.py), and its sign.
_AND = r"(?:and|und|et|y|e|en|&)"
_BETWEEN_FACTS = re.compile(rf"\s*[,;、，；]\s*(?:{_AND}\s+)?|\s+{_AND}\s+|[和与]", re.IGNORECASE)


def splits(answer: str) -> list[tuple[str, str]]:
    """Return all ways to split an answer into two facts that differ."""
    pairs = [
        (answer[: match.start()].strip(), answer[match.end() :].strip())
        for match in _BETWEEN_FACTS.finditer(answer)
    ]
    return [pair for pair in pairs if all(map(normalise, pair)) and len(set(map(normalise, pair))) == 2]


def facts_in(answer: str, texts: Sequence[str]) -> tuple[str, str] | None:
    """Return the two facts of an answer that occur in two different texts; None if there are no such
    facts."""
    for facts in splits(answer):
        for chosen in permutations(texts, 2):
            pairs = zip(chosen, facts, strict=True)
            if all(cover_exact_match(text, [fact], ordered=True) for text, fact in pairs):
                return facts
    return None


def pair_forms(answer: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted forms of an answer: itself, then its facts in all their forms, joined by "and" and
    by a comma. An answer whose facts are not in the texts has no other forms."""
    facts = facts_in(answer, texts)
    if facts is None:
        return (answer,)
    forms = product(*map(answer_forms, facts))
    return tuple(dict.fromkeys([answer, *(joint.join(pair) for pair in forms for joint in (" and ", ", "))]))
