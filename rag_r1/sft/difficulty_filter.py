"""Selects questions by difficulty: how often a policy must try until it is right.

RAG-R1 (arXiv 2507.02962): a question that is answered wrong is replayed up to ten times and kept if one of
these is right; of those that are right at the first try, a quarter is kept. So what is kept can be learned
from and is not known yet. R1-Searcher (arXiv 2503.05592) sorts questions into classes by the same number:
easy below 10 rollouts until the first right one, medium from 10 to 20, hard above 20
(data_process/difficulty.py).

Rollouts that failed with the infrastructure are not tries. All draws are hashes of the seed and the question,
so neither the order of the questions nor that of the answers matters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.data.difficulty_class import difficulty_class
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.rows import QuestionRow
from rag_r1.rollouts.requests import seeded_fraction

NEVER = "never"


@dataclass(frozen=True)
class QuestionRollouts:
    """A question with its rollouts that could be judged, in order. It is not replayed after the first right
    one, so only the last of `rights` can be True. `decided`: whether no further rollout will be played."""

    row: QuestionRow
    rights: tuple[bool, ...] = ()
    decided: bool = True

    @property
    def solved(self) -> bool:
        """Whether a rollout was right."""
        return any(self.rights)

    @property
    def right_at_first(self) -> bool:
        """Whether the first rollout was right."""
        return self.rights[:1] == (True,)

    @property
    def difficulty(self) -> str | None:
        """R1-Searcher's class of difficulty; None if more rollouts must tell, or none could be judged."""
        return difficulty_class(len(self.rights), self.solved) if self.rights else None

    @property
    def bar(self) -> int | str:
        """The bar of the histogram in which it counts: rollouts until the first right one, or `never`."""
        return len(self.rights) if self.solved else NEVER


def is_kept(question: QuestionRollouts, share: float, seed: int) -> bool:
    """Whether the question is kept. `share`: the share of the questions right at the first try that is
    kept."""
    if question.right_at_first:
        return seeded_fraction(seed, "kept", question.row.id) < share
    return question.decided and question.solved


def split(
    rows: Sequence[QuestionRow], share: float, seed: int
) -> tuple[list[QuestionRow], list[QuestionRow]]:
    """(training rows, validation rows), each in the given order. Validation has `share` of the rows, rounded
    up (as RAG-R1's 252 of 5,022), but never all of them. Rows with the same question stand in the same part,
    so validation can have some more."""
    limit = min(math.ceil(share * len(rows)), max(len(rows) - 1, 0))
    sizes = Counter(question_key(row.question) for row in rows)
    keys: set[str] = set()
    count = 0
    for key in sorted(sizes, key=lambda key: seeded_fraction(seed, "validation", key)):
        if count >= limit:
            break
        if count + sizes[key] < len(rows):
            keys.add(key)
            count += sizes[key]
    parts: tuple[list[QuestionRow], list[QuestionRow]] = ([], [])
    for row in rows:
        parts[question_key(row.question) in keys].append(row)
    return parts


def rollout_lines(questions: Iterable[QuestionRollouts]) -> Iterable[dict[str, Any]]:
    """The lines of rollouts.jsonl, as data_process/difficulty.py reads them: the number of rollouts until the
    first right one, or, if none was right, a line for each rollout."""
    for question in questions:
        line = {"id": question.row.id, "question": question.row.question}
        if question.solved:
            yield {**line, "rollouts": len(question.rights)}
        else:
            yield from ({**line, "rewards": {"cover_em": 0.0}} for _ in question.rights)


def filter_counts(questions: Sequence[QuestionRollouts], share: float, seed: int) -> dict[str, Any]:
    """The figures of a filter, as in summary.json."""
    judged = [question for question in questions if question.rights]
    easy = [question for question in judged if question.right_at_first]
    solved = [question for question in judged if question.solved and not question.right_at_first]
    classes = Counter(question.difficulty or "unclassified" for question in judged)
    bars = Counter(question.bar for question in judged if question.solved or question.decided)
    return {
        "questions": len(questions),
        "right_at_first": len(easy),
        "right_at_first_kept": sum(is_kept(question, share, seed) for question in easy),
        "right_later": len(solved),
        "never_right": sum(question.decided and not question.solved for question in judged),
        "undecided": sum(not question.decided for question in questions),
        "never_judged": sum(question.decided and not question.rights for question in questions),
        "kept": sum(is_kept(question, share, seed) for question in questions),
        "rollouts": sum(len(question.rights) for question in questions),
        "classes": dict(sorted(classes.items())),
        "histogram": {str(bar): bars[bar] for bar in sorted(bars, key=_sort_key)},
    }


def _sort_key(bar: int | str) -> float:
    return math.inf if bar == NEVER else float(bar)
