"""Reads the questions of a file or split, and counts the rows that cannot be used (bad_rows.py).

The rows come from local files (row_files.py) or from the Hub (hub_rows.py); questions.py parses each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.questions import ANSWER_KEYS, KEYS, LIST_KEYS, Question, columns_of, parse_row
from rag_r1.data.files.row_files import ACCEPTED, open_rows
from rag_r1.io.errors import DataError


@dataclass
class QuestionFile:
    """The questions of one file or split, and the rows that cannot be used."""

    name: str
    questions: list[Question] = field(default_factory=list)
    #: Number of all rows.
    n_read: int = 0
    bad: BadRows = field(default_factory=BadRows)

    @property
    def n_malformed(self) -> int:
        """The number of rows that cannot be used."""
        return self.bad.count

    @property
    def malformed(self) -> list[str]:
        """The first rows that cannot be used, as `row 3: no answer`."""
        return [row.removeprefix(f"{self.name}, ") for row in self.bad.first]


def read_file(path: str | Path) -> QuestionFile:
    """Read all questions of a file in any format of row_files.py. Raises DataError if the file cannot be
    read, lacks a column, or has no usable row."""
    path = Path(path)
    with open_rows(path, KEYS, LIST_KEYS) as (columns, rows):
        return collect(str(path), rows, columns, f". Accepted are {ACCEPTED}")


def collect(
    name: str, rows: Iterable[tuple[int, Any]], columns: Collection[str] | None = None, hint: str = ""
) -> QuestionFile:
    """Collect the questions of (number, row) pairs; a row that could not be decoded has a BrokenRowError in
    its place.

    `name` is that of the file or split in messages. `columns` has all columns of a table, and is None for
    JSON. Raises DataError if a required column is missing, or if no row is usable; that message ends with
    `hint`.
    """
    file = QuestionFile(name)
    if columns:
        check_columns(name, columns)
    for number, row in rows:
        file.n_read += 1
        try:
            file.questions.append(replace(parse_row(row), row=number))
        except ValueError as error:
            file.bad.add(f"{name}, row {number}", error)
    if not file.questions:
        reasons = "; ".join(file.malformed) or "it has no rows"
        raise DataError(f"no usable question in {name}: {reasons}{hint}")
    return file


def check_columns(name: object, columns: Collection[str]) -> None:
    """Raise DataError if a table has no column of questions, or none of answers."""
    present = columns_of(columns)
    if "question" not in columns:
        raise DataError(f"{name} has no column `question`: {present}. Rename the column of questions")
    if not set(columns) & set(ANSWER_KEYS):
        accepted = ", ".join(ANSWER_KEYS)
        raise DataError(f"{name} has no column of answers: {present}. Name it one of {accepted}")
