"""Selects questions by their difficulty, which is the number of tries until a policy answers correctly.

In RAG-R1 (arXiv 2507.02962), a question that is answered wrong is replayed up to ten times, and kept if one
of the replays is right. Of the questions that are right at the first try, a quarter is kept. The selected
questions can thus be learned from, and most are not known yet. R1-Searcher (arXiv 2503.05592) classifies
questions by the same number: easy below 10 rollouts until the first right one, medium from 10 to 20, hard
above 20 (data_process/difficulty_file.py).

Rollouts that failed because of the infrastructure do not count as tries. Every random choice is a hash of the
seed and the question, so the order of the questions and the order of the answers do not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rag_r1.data.difficulty_class import difficulty_class
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.rows import QuestionRow
from rag_r1.rollouts.requests import seeded_fraction

#: The bar of the histogram for questions without a right rollout.
NEVER = "never"


@dataclass(frozen=True)
class QuestionRollouts:
    """A question with the results of its rollouts."""

    row: QuestionRow
    #: Whether each rollout that could be judged was right, in order. Only the last one can be True, because a
    #: question is not replayed after a right answer.
    was_right: tuple[bool, ...] = ()
    #: Whether no further rollout will be played.
    decided: bool = True

    @property
    def solved(self) -> bool:
        """Whether a rollout was right."""
        return any(self.was_right)

    @property
    def right_at_first(self) -> bool:
        """Whether the first rollout that could be judged was right."""
        return self.was_right[:1] == (True,)

    @property
    def difficulty(self) -> str | None:
        """R1-Searcher's class of difficulty; None if there are too few rollouts for one."""
        return difficulty_class(len(self.was_right), self.solved) if self.was_right else None

    @property
    def bar(self) -> int | str:
        """The bar of the histogram that counts the question: rollouts until a right one, or `never`."""
        return len(self.was_right) if self.solved else NEVER


def is_kept(question: QuestionRollouts, share: float, seed: int) -> bool:
    """Return whether a question is kept. `share` of those that are right at the first try are kept."""
    if question.right_at_first:
        return seeded_fraction(seed, "kept", question.row.id) < share
    return question.decided and question.solved


def split(
    rows: Sequence[QuestionRow], share: float, seed: int
) -> tuple[list[QuestionRow], list[QuestionRow]]:
    """Split rows into (training rows, validation rows), each in their original order.

    `share` of the rows, rounded up as in RAG-R1 (252 of 5,022), but never all, are for validation. Rows with
    the same question stay together, so their number may differ a little.
    """
    n_share = math.ceil(Fraction(str(share)) * len(rows))  # in floats, 0.07 of 100 is more than 7
    limit = min(n_share, max(len(rows) - 1, 0))
    keys = [question_key(row.question) for row in rows]
    sizes = Counter(keys)
    held_out: set[str] = set()
    count = 0
    for key in sorted(sizes, key=lambda key: seeded_fraction(seed, "validation", key)):
        if count >= limit:
            break
        if count + sizes[key] < len(rows):
            held_out.add(key)
            count += sizes[key]
    train = [row for row, key in zip(rows, keys, strict=True) if key not in held_out]
    return train, [row for row, key in zip(rows, keys, strict=True) if key in held_out]


def rollout_lines(questions: Iterable[QuestionRollouts]) -> Iterator[dict[str, Any]]:
    """Yield the lines of rollouts.jsonl in the form that data_process/difficulty_file.py reads.

    A line has the number of rollouts until the first right one. A question without a right rollout has a line
    for each rollout instead.
    """
    for question in questions:
        line = {"id": question.row.id, "question": question.row.question}
        if question.solved:
            yield {**line, "rollouts": len(question.was_right)}
        else:
            yield from ({**line, "rewards": {"cover_em": 0.0}} for _ in question.was_right)


def filter_counts(questions: Sequence[QuestionRollouts], share: float, seed: int) -> dict[str, Any]:
    """Return the counts of a filter's run, as they are in summary.json."""
    judged = [question for question in questions if question.was_right]
    right_at_first = [question for question in judged if question.right_at_first]
    classes = Counter(question.difficulty or "unclassified" for question in judged)
    bars = Counter(question.bar for question in judged if question.solved or question.decided)
    return {
        "questions": len(questions),
        "right_at_first": len(right_at_first),
        "right_at_first_kept": sum(is_kept(question, share, seed) for question in right_at_first),
        "right_later": sum(question.solved for question in judged) - len(right_at_first),
        "never_right": sum(question.decided and not question.solved for question in judged),
        "undecided": sum(not question.decided for question in questions),
        "never_judged": sum(question.decided and not question.was_right for question in questions),
        "kept": sum(is_kept(question, share, seed) for question in questions),
        "rollouts": sum(len(question.was_right) for question in questions),
        "classes": dict(sorted(classes.items())),
        "histogram": {str(bar): bars[bar] for bar in sorted(bars, key=lambda bar: (bar == NEVER, bar))},
    }
