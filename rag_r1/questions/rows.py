"""Refuses duplicates, and writes the files of the questions.

Of two questions with one wording, or one answer from the same passages, the first is kept; also of two with
one answer and the same names and numbers that are nearly one wording or about copies of the same passages. If
one is in train and one in test, that of test is kept, so that no question of test is trained on. The rows are
those of any data set (rag_r1/data/rows.py), with the ids of the passages that a question needs.

    train.parquet, test.parquet   the rows, each if there is one
    questions.jsonl               the same with kind and split, for people and for `rag-r1 eval report`
    refused.jsonl                 each refused draft with step, reason and what the reader said
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
from rag_r1.questions.documents import SPLITS, first_of_copies
from rag_r1.questions.drafts import STEP_OF, Draft, Outcome
from rag_r1.rewards import normalise
from rag_r1.rollouts.requests import seeded_fraction

QUESTIONS = "questions.jsonl"
REFUSED = "refused.jsonl"


def without_duplicates(outcomes: Sequence[Outcome], similarity: float) -> list[Outcome]:
    """The outcomes, in order, with those refused whose question is equal or nearly equal to one that is kept.
    `similarity`: that of nearly equal questions; 0: only equal ones are refused."""
    order = sorted(
        (position for position, outcome in enumerate(outcomes) if outcome.is_kept), key=_test_first(outcomes)
    )
    drafts = [outcomes[position].draft for position in order]
    repeated = _find_repeated(drafts, similarity)
    final = list(outcomes)
    for later, first in repeated.items():
        outcome, earlier = outcomes[order[later]], drafts[first]
        is_leak = earlier.seed.split != outcome.seed.split
        reason = "in_other_split" if is_leak else "duplicate"
        final[order[later]] = replace(outcome, reason=reason, detail=f"{earlier.id}: {earlier.question}")
    return final


def _test_first(outcomes: Sequence[Outcome]) -> Callable[[int], tuple[bool, int]]:
    """The sort key of positions in `outcomes`: those of the test set first."""
    return lambda position: (outcomes[position].seed.split != "test", position)


def _find_repeated(drafts: Sequence[Draft], similarity: float) -> dict[int, int]:
    """Number of a repeated question -> number of the first that it repeats, and that is kept."""
    refused: dict[int, int] = {}
    for key in (_wording, _fact, *([_fact_of_copies(drafts)] if similarity else [])):
        first: dict[Any, int] = {}
        for number in range(len(drafts)):
            if number not in refused and (earlier := first.setdefault(key(drafts[number]), number)) != number:
                refused[number] = earlier
    # Questions of one wording about two things are alike, too: they have other answers.
    by_answer: dict[Any, list[int]] = defaultdict(list)
    for number, draft in enumerate(drafts):
        if number not in refused:
            by_answer[normalise(draft.golds[0]), _names(draft.question)].append(number)
    for numbers in by_answer.values():
        if similarity and len(numbers) > 1:
            refused |= _similar(drafts, numbers, similarity)
    return refused


def _similar(drafts: Sequence[Draft], numbers: Sequence[int], similarity: float) -> dict[int, int]:
    """Number of a question that is nearly equal to an earlier one -> number of that one, which is kept."""
    texts = [drafts[number].question for number in numbers]
    pairs = sorted(near_duplicates(texts, texts.__getitem__, similarity), key=lambda pair: pair.later)
    refused: dict[int, int] = {}
    for pair in pairs:
        if numbers[pair.first] not in refused:
            refused[numbers[pair.later]] = numbers[pair.first]
    return refused


def _names(question: str) -> frozenset[str]:
    """The names and numbers in a question: two that differ in these ask about two things."""
    return frozenset(re.findall(r"(?<=\s)[\"“(]?([A-ZÀ-ÖØ-Þ]\w*|\d+)", question))


def _wording(draft: Draft) -> str:
    return question_key(draft.question)


def _fact(draft: Draft) -> Any:
    """A key that is equal for questions with one answer from the same passages; of yes_no questions each has
    its own, since two facts of the same passages may both be true."""
    if draft.kind == "yes_no":
        return draft.id
    return frozenset(passage.id for passage in draft.passages), normalise(draft.golds[0])


def _fact_of_copies(drafts: Sequence[Draft]) -> Callable[[Draft], Any]:
    """A key as `_fact`, but equal also if the passages are copies of each other, and the questions name the
    same things: passages that are alike by a template are about different ones."""
    first = first_of_copies([passage for draft in drafts for passage in draft.passages])

    def key(draft: Draft) -> Any:
        passages = frozenset(first[passage.id] for passage in draft.passages)
        states_fact = draft.kind != "yes_no"
        return (passages, normalise(draft.golds[0]), _names(draft.question)) if states_fact else draft.id

    return key


def write_files(
    out: Path, outcomes: Sequence[Outcome], protocol: Protocol, source_name: str, seed: int
) -> dict[str, int]:
    """Write the files of the outcomes, those of an earlier start replaced; returns the number of rows of each
    split."""
    kept_drafts = [outcome.draft for outcome in outcomes if outcome.is_kept]
    kept_drafts.sort(key=lambda draft: seeded_fraction(seed, "order", draft.id))  # in no order of kinds
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
    """The question of a draft, with the metadata of its row."""
    return Question(
        draft.question,
        draft.golds,
        draft.id,
        metadata={
            "question_type": draft.kind,
            "hops": len(draft.passages),
            "supporting_ids": [passage.id for passage in draft.passages],
            "supporting_titles": [passage.title for passage in draft.passages if passage.title],
        },
    )


def _line(draft: Draft) -> dict[str, Any]:
    """A line of questions.jsonl."""
    return {
        "id": draft.id,
        "question": draft.question,
        "golden_answers": list(draft.golds),
        "supporting_ids": [passage.id for passage in draft.passages],
        "supporting_titles": [passage.title for passage in draft.passages if passage.title],
        "kind": draft.kind,
        "obscure": draft.seed.obscure,
        "split": draft.seed.split,
    }


def _refused_lines(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """The lines of refused.jsonl."""
    for outcome in outcomes:
        if outcome.reason is not None:
            draft = {} if outcome.draft is None else _line(outcome.draft)
            seed = outcome.seed
            fields = {"passages": [passage.id for passage in seed.passages]}
            why = {"step": STEP_OF[outcome.reason], "reason": outcome.reason, "detail": outcome.detail}
            yield {"id": seed.id, "kind": seed.kind, "split": seed.split, **fields, **why, **draft}
