"""Refuses duplicates among the verified questions, and writes the files of a run.

Two questions are duplicates if they have

    - the same wording,
    - the same answer from the same passages, or
    - the same answer, names and numbers, and either nearly the same wording or passages that are copies.

The first of two duplicates is kept, unless one is in train and the other in test: then the one in test is
kept, so that no test question is trained on.

    train.parquet, test.parquet   the rows (rag_r1/data/rows.py) with the ids of the passages that each
                                  question needs; a file without rows is not written
    questions.jsonl               the same with kind and split, for people and for `rag-r1 eval report`
    refused.jsonl                 each refused draft with the step, the reason and the reader's answers
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.near_duplicates import near_duplicates
from rag_r1.data.files.qa_parquet import make_rows
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import RowWriter
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import Protocol
from rag_r1.questions.drafts import STEP_OF, Draft, Outcome
from rag_r1.questions.passages.documents import SPLITS, first_of_copies
from rag_r1.rewards import normalise
from rag_r1.rollouts.requests import seeded_fraction

QUESTIONS = "questions.jsonl"
REFUSED = "refused.jsonl"


def without_duplicates(outcomes: Sequence[Outcome], similarity: float) -> list[Outcome]:
    """Return the outcomes in their order, with duplicates of kept questions refused.

    `similarity` is the one from which two wordings are nearly the same. With 0 only questions of the same
    wording, and those with the same answer from the same passages, are duplicates. Raises DataError if it is
    not 0 and the package rensa is not installed.
    """
    kept = [position for position, outcome in enumerate(outcomes) if outcome.is_kept]
    order = sorted(kept, key=lambda position: outcomes[position].seed.split != "test")  # test first; stable
    drafts = [outcomes[position].draft for position in order]
    final = list(outcomes)
    for later, first in _find_duplicates(drafts, similarity).items():
        outcome, earlier = outcomes[order[later]], drafts[first]
        is_leak = earlier.seed.split != outcome.seed.split
        reason = "in_other_split" if is_leak else "duplicate"
        final[order[later]] = replace(outcome, reason=reason, detail=f"{earlier.id}: {earlier.question}")
    return final


def _find_duplicates(drafts: Sequence[Draft], similarity: float) -> dict[int, int]:
    """Map the index of each duplicate draft to the index of the earlier draft that is kept instead."""
    duplicates: dict[int, int] = {}
    for key in (_wording, _fact, *([_fact_of_copies(drafts)] if similarity else [])):
        first: dict[Any, int] = {}
        for index, draft in enumerate(drafts):
            if index not in duplicates and (earlier := first.setdefault(key(draft), index)) != index:
                duplicates[index] = earlier
    # Similar wordings with different answers are no duplicates: they ask the same about different things.
    by_answer: dict[Any, list[int]] = defaultdict(list)
    for index, draft in enumerate(drafts):
        if index not in duplicates:
            by_answer[_answer(draft), _names(draft.question)].append(index)
    for indices in by_answer.values():
        if similarity and len(indices) > 1:
            duplicates |= _find_similar(drafts, indices, similarity)
    return duplicates


def _find_similar(drafts: Sequence[Draft], indices: Sequence[int], similarity: float) -> dict[int, int]:
    """Like `_find_duplicates`, for the drafts at these indices and by the similarity of their wordings."""
    texts = [drafts[index].question for index in indices]
    pairs = sorted(near_duplicates(texts, texts.__getitem__, similarity), key=lambda pair: pair.later)
    duplicates: dict[int, int] = {}
    for pair in pairs:
        if indices[pair.first] not in duplicates:
            duplicates[indices[pair.later]] = indices[pair.first]
    return duplicates


def _names(question: str) -> frozenset[str]:
    """The names and numbers in a question after its first word. Questions that differ in these ask about
    different things."""
    return frozenset(re.findall(r"(?<=\s)[\"“(]?([A-ZÀ-ÖØ-Þ]\w*|\d+)", question))


def _answer(draft: Draft) -> tuple[str, ...]:
    """A key that is equal for questions with the same answer, also if it names its facts in another order."""
    return tuple(sorted(normalise(forms[0]) for forms in draft.facts))


def _wording(draft: Draft) -> str:
    """A key that is equal for questions with the same wording."""
    return question_key(draft.question)


def _fact(draft: Draft) -> Any:
    """A key that is equal for questions with the same answer from the same passages.

    Every yes_no question has a key of its own, since several questions about two passages may have the same
    answer and still ask for different facts.
    """
    if draft.kind == "yes_no":
        return draft.id
    return frozenset(passage.id for passage in draft.passages), _answer(draft)


def _fact_of_copies(drafts: Sequence[Draft]) -> Callable[[Draft], Any]:
    """Make a key like `_fact` that does not distinguish passages that are copies of each other.

    The key includes the names in the question, because passages that are written by a template look like
    copies, but are about different things.
    """
    first = first_of_copies([passage for draft in drafts for passage in draft.passages])

    def key(draft: Draft) -> Any:
        if draft.kind == "yes_no":
            return draft.id
        passages = frozenset(first[passage.id] for passage in draft.passages)
        return passages, _answer(draft), _names(draft.question)

    return key


def write_files(
    out: Path, outcomes: Sequence[Outcome], protocol: Protocol, source_name: str, seed: int
) -> dict[str, int]:
    """Write the files of a run, and replace those of an interrupted one. Returns the number of rows of each
    split. `source_name` is their `data_source`, and `seed` that of their order."""
    kept_drafts = [outcome.draft for outcome in outcomes if outcome.is_kept]
    kept_drafts.sort(key=lambda draft: seeded_fraction(seed, "order", draft.id))  # mixes the kinds
    counts = {}
    for split in SPLITS:
        drafts = [draft for draft in kept_drafts if draft.seed.split == split]
        counts[split] = len(drafts)
        path = out / f"{split}.parquet"
        if not drafts:
            path.unlink(missing_ok=True)
            continue
        with RowWriter(path) as writer:
            for row in make_rows(list(map(_question, drafts)), protocol, source_name, split):
                writer.add(row)
    write_json_lines(out / QUESTIONS, map(_line, kept_drafts), private=True)
    write_json_lines(out / REFUSED, _refused_lines(outcomes), private=True)
    return counts


def _question(draft: Draft) -> Question:
    """Convert a draft to a question with the metadata of its row."""
    metadata = {"question_type": draft.kind, "hops": len(draft.passages), **_supporting(draft)}
    return Question(draft.question, draft.golds, draft.id, metadata=metadata)


def _line(draft: Draft) -> dict[str, Any]:
    """Return the fields of a draft in questions.jsonl and refused.jsonl."""
    return {
        "id": draft.id,
        "question": draft.question,
        "golden_answers": list(draft.golds),
        **_supporting(draft),
        "kind": draft.kind,
        "obscure": draft.seed.obscure,
        "split": draft.seed.split,
    }


def _supporting(draft: Draft) -> dict[str, list[str]]:
    """Return the fields that name the passages which the question needs."""
    return {
        "supporting_ids": [passage.id for passage in draft.passages],
        "supporting_titles": [passage.title for passage in draft.passages if passage.title],
    }


def _refused_lines(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield the lines of refused.jsonl."""
    for outcome in outcomes:
        if outcome.reason is not None:
            draft = {} if outcome.draft is None else _line(outcome.draft)
            seed = outcome.seed
            fields = {"passages": [passage.id for passage in seed.passages]}
            why = {"step": STEP_OF[outcome.reason], "reason": outcome.reason, "detail": outcome.detail}
            yield {"id": seed.id, "kind": seed.kind, "split": seed.split, **fields, **why, **draft}
