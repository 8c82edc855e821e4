"""Refuses duplicates among the verified questions.

Two questions are duplicates if they have

    - the same wording,
    - the same answer from the same passages, or
    - the same answer, names and numbers, and either nearly the same wording or passages that are copies.

The first of two duplicates is kept, unless one is in train and the other in test: then the one in test is
kept, so that no test question is trained on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.near_duplicates import near_duplicates
from rag_r1.questions.drafts import Draft, Outcome
from rag_r1.questions.passages.documents import first_of_copies
from rag_r1.rewards import normalise


def without_duplicates(outcomes: Sequence[Outcome], similarity: float) -> list[Outcome]:
    """Return the outcomes in their order, with duplicates of kept questions refused.

    Two wordings are nearly the same if they are at least as similar as `similarity`. If it is 0, neither
    similar wordings nor copies of passages are looked for. Raises DataError if it is not 0 and the package
    rensa is not installed.
    """
    kept = [index for index, outcome in enumerate(outcomes) if outcome.is_kept]
    order = sorted(kept, key=lambda index: outcomes[index].seed.split != "test")  # test first; stable
    drafts = [outcomes[index].draft for index in order]
    final = list(outcomes)
    for later, first in _find_duplicates(drafts, similarity).items():
        outcome, earlier = outcomes[order[later]], drafts[first]
        reason = "duplicate" if earlier.seed.split == outcome.seed.split else "in_other_split"
        final[order[later]] = replace(outcome, reason=reason, detail=f"{earlier.id}: {earlier.question}")
    return final


def _find_duplicates(drafts: Sequence[Draft], similarity: float) -> dict[int, int]:
    """Map the index of each duplicate draft to the index of the earlier draft that is kept instead."""
    duplicates: dict[int, int] = {}
    for key in (_wording_key, _fact_key, *([_fact_key_of_copies(drafts)] if similarity else [])):
        first: dict[Hashable, int] = {}
        for index, draft in enumerate(drafts):
            if index not in duplicates and (earlier := first.setdefault(key(draft), index)) != index:
                duplicates[index] = earlier
    # Similar wordings with different answers are no duplicates: they ask the same about different things.
    by_answer: dict[Hashable, list[int]] = defaultdict(list)
    for index, draft in enumerate(drafts):
        if index not in duplicates:
            by_answer[_answer_key(draft), _names(draft.question)].append(index)
    for indices in by_answer.values():
        if similarity and len(indices) > 1:
            duplicates |= _find_similar(drafts, indices, similarity)
    return duplicates


def _find_similar(drafts: Sequence[Draft], indices: Sequence[int], similarity: float) -> dict[int, int]:
    """Map duplicates as `_find_duplicates` does, but only among the drafts at `indices`, and by how similar
    their wordings are."""
    texts = [drafts[index].question for index in indices]
    pairs = near_duplicates(texts, texts.__getitem__, similarity)
    duplicates: dict[int, int] = {}
    for pair in sorted(pairs, key=lambda pair: pair.later):
        if indices[pair.first] not in duplicates:
            duplicates[indices[pair.later]] = indices[pair.first]
    return duplicates


def _names(question: str) -> frozenset[str]:
    """Return the names and numbers in a question after its first word. Questions that differ in these ask
    about different things."""
    return frozenset(re.findall(r"(?<=\s)[\"“(]?([A-ZÀ-ÖØ-Þ]\w*|\d+)", question))


def _answer_key(draft: Draft) -> tuple[str, ...]:
    """Return a key that is equal for questions with the same answer, even if it names its facts in another
    order."""
    return tuple(sorted(normalise(forms[0]) for forms in draft.facts))


def _wording_key(draft: Draft) -> str:
    """Return a key that is equal for questions with the same wording."""
    return question_key(draft.question)


def _fact_key(draft: Draft) -> Hashable:
    """Return a key that is equal for questions with the same answer from the same passages.

    Every yes_no question has a key of its own, since several questions about two passages may have the same
    answer and still ask for different facts.
    """
    if draft.kind == "yes_no":
        return draft.id
    return frozenset(passage.id for passage in draft.passages), _answer_key(draft)


def _fact_key_of_copies(drafts: Sequence[Draft]) -> Callable[[Draft], Hashable]:
    """Return a function like `_fact_key` that does not distinguish passages that are copies of each other.

    The key includes the names in the question, because passages that are written by a template look like
    copies, but are about different things.
    """
    first = first_of_copies([passage for draft in drafts for passage in draft.passages])

    def key(draft: Draft) -> Hashable:
        if draft.kind == "yes_no":
            return draft.id
        passages = frozenset(first[passage.id] for passage in draft.passages)
        return passages, _answer_key(draft), _names(draft.question)

    return key
