"""Reads how difficult questions are: the number of rollouts that a model with search needs until one is
right.

`easy` < 10, `medium` 10 to 20, `hard` > 20. The file is JSON lines, which either state the number or record
one rollout each, in order, as our trajectory records do:

    {"id" or "question", "rollouts": 14}          the question counts if a line has both
    {"question", "rewards": {"cover_em": 1.0}}    right if above 0

A question without a right answer in 20 recorded rollouts or fewer has no class, since it may be medium or
hard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.data.difficulty_class import difficulty_class
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.questions import Question
from rag_r1.data.files.row_files import BrokenRowError, parse_json_line, short_text
from rag_r1.io.errors import DataError, reason_of
from rag_r1.io.ordinary_files import open_ordinary


@dataclass(frozen=True)
class DifficultyTable:
    """The difficulty classes of questions."""

    #: Id in the source -> class.
    by_id: Mapping[str, str]
    #: `question_key` of the text -> class.
    by_question: Mapping[str, str]
    #: Lines of the file that were left out.
    bad: BadRows = field(default_factory=BadRows)

    def class_of(self, question: Question) -> str | None:
        """Return the class of a question, or None if it has none.

        A class by id takes precedence over one by text.
        """
        label = self.by_id.get(question.id) if question.id is not None else None
        return label or self.by_question.get(question_key(question.question))


def read_difficulties(path: str | Path, skip_bad_rows: bool = False) -> DifficultyTable:
    """Read the classes of questions from JSON lines with `rollouts`, or from trajectory records.

    Of two lines that state the number for one question the last counts, and a stated number counts more than
    recorded rollouts. Raises DataError, with the file and the first bad lines, if a line has no difficulty
    (with `skip_bad_rows` such lines are counted in `bad` instead). Also raises it for a file that cannot be
    read or is not JSON lines, and if no question gets a class.
    """
    lines, bad, n_json = _DifficultyLines(), BadRows(), 0
    try:
        with open_ordinary(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = parse_json_line(line)
                n_json += not isinstance(row, BrokenRowError)
                try:
                    lines.add(row)
                except ValueError as error:
                    bad.add(f"{path}, line {number}", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}: give another file") from error
    if bad.count and not n_json:
        raise DataError(f"{path} is not JSON lines: {'; '.join(bad.first)}: give another file")
    if bad.count and not skip_bad_rows:
        raise DataError(bad.refusal())
    table = lines.table(bad)
    if not table.by_id and not table.by_question:
        raise DataError(f"{path} gives no question a difficulty: a line is {{id or question, rollouts}}")
    return table


class _DifficultyLines:
    """Collects the difficulties that the lines of a file state or record."""

    def __init__(self) -> None:
        self._by_id: dict[str, str] = {}
        self._by_question: dict[str, str] = {}
        #: `question_key` -> whether each recorded rollout was right.
        self._rollouts: dict[str, list[bool]] = defaultdict(list)

    def add(self, row: Any) -> None:
        """Add the difficulty, or the rollout, of a row of `parse_json_line`. Raises ValueError if it has
        none."""
        if isinstance(row, BrokenRowError):
            raise row
        question = row.get("question") if isinstance(row, dict) else None
        question_id = row.get("id") if isinstance(row, dict) else None
        if not isinstance(question, str) and not isinstance(question_id, str | int):
            raise ValueError("needs `question` or `id`")
        count = row.get("rollouts")
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            label = difficulty_class(count, right=True)
            if isinstance(question, str):
                self._by_question[question_key(question)] = label
            else:
                self._by_id[str(question_id)] = label
            return
        rewards = row.get("rewards")
        if not isinstance(rewards, dict) or "cover_em" not in rewards or not isinstance(question, str):
            raise ValueError("needs `rollouts`, a number from 1, or a question with rewards.cover_em")
        score = rewards["cover_em"]
        if score is None:  # the rollout has failed, and does not count
            return
        if not isinstance(score, int | float) or score != score:  # NaN
            raise ValueError(f"rewards.cover_em must be a number, not {short_text(score)}")
        self._rollouts[question_key(question)].append(score > 0)

    def table(self, bad: BadRows) -> DifficultyTable:
        """Return the classes of all questions that have one."""
        recorded: dict[str, str] = {}
        for key, outcomes in self._rollouts.items():
            count = outcomes.index(True) + 1 if any(outcomes) else len(outcomes)
            if label := difficulty_class(count, right=any(outcomes)):
                recorded[key] = label
        return DifficultyTable(self._by_id, recorded | self._by_question, bad)
