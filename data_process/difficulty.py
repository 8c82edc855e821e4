"""Draws training sets by source and difficulty, such as R1-Searcher's.

The difficulty of a question is the number of rollouts that a model with search needs until one is right:
`easy` < 10, `medium` 10 to 20, `hard` > 20. `read_difficulties` reads it from a file of JSON lines, which
either state the number or record one rollout each, in order, as our trajectory records do:

    {"id" or "question", "rollouts": 14}
    {"question", "rewards": {"cover_em": 1.0}}    right if above 0

A question without a right answer in 20 recorded rollouts or fewer has no class, since it may be medium or
hard. Without a file there are no classes, and the counts of a source are drawn from all of its questions.

`select` draws the questions. A composition that cannot be met is not an error, because a data set may simply
be smaller: all matching questions are taken, and every shortfall is reported with the available numbers.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.data.difficulty_class import EASY, HARD, MEDIUM, difficulty_class
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.duplicates import Outcome, RepeatedRow, golds_key, question_key
from rag_r1.data.files.questions import Question
from rag_r1.data.files.row_files import parse_json_line, short_text
from rag_r1.io.atomic_files import reason_of
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary

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
class DifficultyTable:
    """The difficulty classes of questions."""

    #: Id in the source -> class.
    by_id: Mapping[str, str]
    #: `question_key` of the text -> class.
    by_question: Mapping[str, str]
    #: Lines of the file that were left out.
    bad: BadRows = field(default_factory=BadRows)

    def of(self, question: Question) -> str | None:
        """Return the class of a question, or None if it has none."""
        label = self.by_id.get(question.id) if question.id is not None else None
        return label or self.by_question.get(question_key(question.question))


@dataclass(frozen=True)
class QuestionSelection:
    """The questions of a draw, and its counts."""

    questions: list[Question]
    #: For each entry of the composition: its `source` and `class`, the number requested (`asked`), drawn
    #: (`taken`), and available by class (`there`).
    counts: list[dict[str, Any]]
    #: Rows that were left out because an earlier one has the same question and answers, or because the
    #: validation set has the question.
    repeats: list[RepeatedRow] = field(default_factory=list)

    @property
    def shortfalls(self) -> list[str]:
        """A sentence for each count that could not be met, with the available numbers."""
        return [_shortfall(entry) for entry in self.counts if entry["taken"] < entry["asked"]]


def read_difficulties(path: str | Path, skip_bad_rows: bool = False) -> DifficultyTable:
    """Read the classes of questions from JSON lines with `rollouts`, or from trajectory records.

    Raises DataError, with the file and the first bad lines, if a line has no difficulty (with `skip_bad_rows`
    such lines are counted in `bad` instead), or if all lines have none.
    """
    by_id: dict[str, str] = {}
    by_question: dict[str, str] = {}
    rollouts: dict[str, list[bool]] = defaultdict(list)  # question_key -> whether each rollout was right
    bad = BadRows()
    n_json = 0
    try:
        with open_ordinary(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = parse_json_line(line)
                n_json += not isinstance(row, ValueError)
                try:
                    _read_line(row, by_id, by_question, rollouts)
                except ValueError as error:
                    bad.add(f"{path}, line {number}", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}: give another file") from error
    for key, outcomes in rollouts.items():
        count = outcomes.index(True) + 1 if any(outcomes) else len(outcomes)
        if label := difficulty_class(count, right=any(outcomes)):
            by_question.setdefault(key, label)
    if bad.count and not n_json:
        raise DataError(f"{path} is not JSON lines: {'; '.join(bad.first)}: give another file")
    if bad.count and not skip_bad_rows:
        raise DataError(bad.refusal())
    if not by_id and not by_question:
        raise DataError(f"{path} gives no question a difficulty: a line is {{id or question, rollouts}}")
    return DifficultyTable(by_id, by_question, bad)


def _read_line(
    row: Any, by_id: dict[str, str], by_question: dict[str, str], rollouts: dict[str, list[bool]]
) -> None:
    """Add the difficulty, or the rollout, in a line to the dicts. Raises ValueError if the line has none."""
    if isinstance(row, ValueError):
        raise row
    question = row.get("question") if isinstance(row, dict) else None
    question_id = row.get("id") if isinstance(row, dict) else None
    if not isinstance(question, str) and not isinstance(question_id, str | int):
        raise ValueError("needs `question` or `id`")
    count = row.get("rollouts")
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        label = difficulty_class(count, right=True)
        if isinstance(question, str):
            by_question[question_key(question)] = label
        else:
            by_id[str(question_id)] = label
        return
    rewards = row.get("rewards")
    if not isinstance(rewards, dict) or "cover_em" not in rewards or not isinstance(question, str):
        raise ValueError("needs `rollouts`, a number from 1, or a question with rewards.cover_em")
    if (score := rewards["cover_em"]) is not None:  # None: the rollout failed, and does not count
        if not isinstance(score, int | float) or score != score:
            raise ValueError(f"rewards.cover_em must be a number, not {short_text(score)}")
        rollouts[question_key(question)].append(score > 0)


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
    the validation set, by their keys (`question_key`).
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
        for question in _unique(questions.get(source, ()), excluded, seen, repeats):
            pools[class_of(question) if class_of else ANY].append(question)
        available = {str(name or "unclassified"): len(pool) for name, pool in pools.items()}
        requested = [(name, count) for (owner, name), count in composition.items() if owner == source]
        for name, count in requested:
            drawn = _draw(pools, name, count, rng)
            sample += drawn
            figures = {"asked": count, "taken": len(drawn), "there": available}
            counts.append({"source": source, "class": name, **figures})
    return QuestionSelection(sample, counts, repeats)


def _draw(
    pools: dict[str | None, list[Question]], name: str, count: int, rng: random.Random
) -> list[Question]:
    """Draw up to `count` questions of a class (ANY: of all classes), and remove them from the pools."""
    pool = [q for members in pools.values() for q in members] if name == ANY else pools[name]
    ids = set(map(id, rng.sample(pool, min(count, len(pool)))))
    drawn = [question for question in pool if id(question) in ids]
    for members in pools.values():
        members[:] = [question for question in members if id(question) not in ids]
    return drawn


def _unique(
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


def _shortfall(entry: Mapping[str, Any]) -> str:
    """Return the sentence about an entry of the composition that could not be met."""
    rows = ", ".join(f"{count} {name}" for name, count in sorted(entry["there"].items())) or "none at all"
    return (
        f"{entry['source']} {entry['class']}: {entry['taken']} of {entry['asked']} questions; "
        f"usable and not in the validation set are {rows}"
    )
