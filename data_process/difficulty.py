"""Draws training sets by source and difficulty, such as R1-Searcher's.

difficulty_file.py reads the class of each question. Without one, the counts of a source are drawn from all of
its questions. A composition that cannot be met is not an error, because a data set may simply be smaller: all
matching questions are taken, and every shortfall is reported with the available numbers.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.data.difficulty_class import EASY, HARD, MEDIUM
from rag_r1.data.files.duplicates import Outcome, RepeatedRow, golds_key, question_key
from rag_r1.data.files.questions import Question

#: Stands for all classes: in a composition, and as the only class if the difficulties are not known.
ANY = "any"
#: The classes that a composition may name, and the sources.
CLASSES = (EASY, MEDIUM, HARD, ANY)
SOURCES = ("hotpotqa", "2wiki")

#: (source, class) -> number of questions.
Composition = Mapping[tuple[str, str], int]

#: R1-Searcher's two stages: 350 and 8,148 questions.
PUBLISHED: dict[int, Composition] = {
    1: {("hotpotqa", MEDIUM): 200, ("2wiki", MEDIUM): 150},
    2: {("hotpotqa", MEDIUM): 2561, ("hotpotqa", HARD): 2000, ("2wiki", MEDIUM): 1087, ("2wiki", HARD): 2500},
}


@dataclass(frozen=True)
class DrawCount:
    """How many questions an entry of a composition has drawn."""

    source: str
    class_: str
    requested: int
    drawn: int
    #: Number of questions of the source by class that could be drawn.
    available: Mapping[str, int]

    @property
    def summary(self) -> dict[str, Any]:
        """The count as the summary of a data set records it."""
        figures = {"asked": self.requested, "taken": self.drawn, "there": dict(self.available)}
        return {"source": self.source, "class": self.class_, **figures}

    @property
    def shortfall(self) -> str | None:
        """The sentence that says what was missing; None if nothing was."""
        if self.drawn >= self.requested:
            return None
        rows = ", ".join(f"{count} {name}" for name, count in sorted(self.available.items())) or "none at all"
        return (
            f"{self.source} {self.class_}: {self.drawn} of {self.requested} questions; "
            f"usable and not in the validation set are {rows}"
        )


@dataclass(frozen=True)
class QuestionSelection:
    """The questions of a draw, and its counts."""

    questions: list[Question]
    #: One for each entry of the composition.
    counts: list[DrawCount]
    #: Rows that were left out because an earlier one has the same question and answers, or because the
    #: validation set has the question.
    repeats: list[RepeatedRow] = field(default_factory=list)

    @property
    def shortfalls(self) -> list[str]:
        """A sentence for each count that could not be met, with the available numbers."""
        return [sentence for count in self.counts if (sentence := count.shortfall)]


def select(
    questions: Mapping[str, Sequence[Question]],
    composition: Composition,
    class_of: Callable[[Question], str | None] | None,
    excluded: Mapping[str, Question],
    seed: int,
) -> QuestionSelection:
    """Draw a composition from `questions` (source -> questions), repeated rows only once.

    `class_of` returns the class of a question. If it is None, the difficulties are not known, and the counts
    of a source are added up to one class `any`. `excluded` has the questions that must not be drawn, those of
    the validation set, by their keys (`question_key`). `seed` is that of the draw. The entries are drawn in
    the order of the composition, so a class after `any` gets what that has left.
    """
    if class_of is None:
        merged: Counter[tuple[str, str]] = Counter()
        for (source, _), count in composition.items():
            merged[source, ANY] += count
        composition = merged
    rng = random.Random(seed)
    seen: dict[tuple[str, frozenset[str]], Question] = {}
    sample, counts, repeats = [], [], []
    for source in dict.fromkeys(source for source, _ in composition):
        pools: dict[str | None, list[Question]] = defaultdict(list)
        for question in _drawable_questions(questions.get(source, ()), excluded, seen, repeats):
            pools[class_of(question) if class_of else ANY].append(question)
        available = {str(name or "unclassified"): len(pool) for name, pool in pools.items()}
        requested = [(name, count) for (owner, name), count in composition.items() if owner == source]
        for name, count in requested:
            drawn = _draw(pools, name, count, rng)
            sample += drawn
            counts.append(DrawCount(source, name, count, len(drawn), available))
    return QuestionSelection(sample, counts, repeats)


def _draw(
    pools: dict[str | None, list[Question]], name: str, count: int, rng: random.Random
) -> list[Question]:
    """Draw up to `count` questions of a class (ANY: of all classes), and remove them from the pools."""
    pool = [question for members in pools.values() for question in members] if name == ANY else pools[name]
    # By identity, which is faster than comparing texts.
    ids = set(map(id, rng.sample(pool, min(count, len(pool)))))
    drawn = [question for question in pool if id(question) in ids]
    for members in pools.values():
        members[:] = [question for question in members if id(question) not in ids]
    return drawn


def _drawable_questions(
    questions: Iterable[Question],
    excluded: Mapping[str, Question],
    seen: dict[tuple[str, frozenset[str]], Question],
    repeats: list[RepeatedRow],
) -> Iterator[Question]:
    """Yield the questions that may be drawn, and add them to `seen`, by question and answers.

    Rows with an excluded question, or with the question and the answers of an earlier row, are added to
    `repeats` instead.
    """
    for question in questions:
        key = question_key(question.question)
        if in_test := excluded.get(key):
            repeats.append(RepeatedRow(question, in_test, Outcome.IN_TEST))
        elif earlier := seen.get((key, golds_key(question))):
            repeats.append(RepeatedRow(question, earlier, Outcome.DUPLICATE))
        else:
            seen[key, golds_key(question)] = question
            yield question
