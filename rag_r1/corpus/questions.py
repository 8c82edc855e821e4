"""Reads the questions of a corpus check, with the evidence that their data sets name.

A file is either parquet in veRL's layout, as data_process/ writes it, or a data set's own file: JSON, JSON
lines, CSV, TSV, or parquet with `question` and its answers (rag_r1/data/files/row_files.py,
rag_r1/data/files/questions.py). A row that joins several questions has them as `parts`, with the gold answers
of each in `part_answers`; the corpus must answer all of them.

A question is identified by its source (`data_source`, or the name of the file) and its id within the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.corpus.evidence import COLUMNS, evidence_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.question_file import check_columns
from rag_r1.data.files.questions import ANSWER_KEYS, KEYS, parse_row
from rag_r1.data.files.row_files import ACCEPTED, open_rows, refuse_repeated
from rag_r1.data.rows import COLUMNS_READ, QuestionRow, as_golds, read_rows, row_fault
from rag_r1.io.errors import DataError
from rag_r1.sandbox.parquet import check_parquet

_READ_COLUMNS = tuple(dict.fromkeys((*KEYS, *COLUMNS)))


class QuestionPart(NamedTuple):
    """A single question."""

    question: str
    #: The gold answers, any of which is right.
    golds: tuple[str, ...]


@dataclass(frozen=True)
class CorpusQuestion:
    """A question and the evidence that its data set names, all of which is needed to answer it."""

    source: str
    id: str
    #: Usually one, and several if the row joins several questions.
    parts: tuple[QuestionPart, ...]
    #: Ids of the passages with the evidence.
    ids: tuple[str, ...] = ()
    #: Titles of the pages with the evidence.
    titles: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """(source, id), which identifies the question in all files."""
        return self.source, self.id


@dataclass
class CorpusQuestions:
    """The questions of all files, in order, and the rows that could not be used."""

    questions: list[CorpusQuestion] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)


def read_questions(paths: Sequence[Path]) -> CorpusQuestions:
    """Read the questions of all files. Raises DataError, with the remedy, if a file cannot be read or has no
    usable question."""
    refuse_repeated(paths)
    questions = CorpusQuestions()
    locations: dict[tuple[str, str], str] = {}
    for path in paths:
        n_earlier, bad = len(questions.questions), BadRows()
        for number, row, parse in _rows(path):
            location = f"{path}, row {number}"
            try:
                question = parse(row, path, number)
                if question.key in locations:
                    raise ValueError(f"its id {question.id[:80]!r} is also that of {locations[question.key]}")
            except ValueError as error:
                bad.add(location, error)
                continue
            locations[question.key] = location
            questions.questions.append(question)
        if len(questions.questions) == n_earlier:
            reasons = "; ".join(bad.first) or f"{path} has no rows"
            raise DataError(f"no usable question: {reasons}. Accepted are {ACCEPTED}")
        questions.bad += bad
    return questions


def _rows(path: Path) -> Iterator[tuple[int, Any, Callable[[Any, Path, int], CorpusQuestion]]]:
    """Yield the rows with their numbers, from 1, and the function that parses them. In place of a row that
    cannot be decoded there is a BrokenRowError, which the function raises. Raises DataError for a file that
    cannot be read."""
    if not path.is_file():
        why = "is a folder: give a file" if path.is_dir() else "there is no such file: correct the path"
        raise DataError(f"--questions {path}: {why}")
    if has_verl_columns(path):
        yield from ((number, row, _from_verl) for number, row in enumerate(read_rows(path), 1))
        return
    with open_rows(path, _READ_COLUMNS, (*ANSWER_KEYS, *COLUMNS)) as (columns, rows):
        if columns is not None:
            check_columns(path, columns)
        yield from ((number, row, _from_data_set) for number, row in rows)


def has_verl_columns(path: Path) -> bool:
    """Return whether a file is parquet with veRL's columns. Raises DataError for parquet that cannot be
    read."""
    if not path.name.lower().endswith(".parquet"):
        return False
    import pyarrow
    import pyarrow.parquet as pq

    try:
        check_parquet(path, COLUMNS_READ)
        return {"extra_info", "reward_model"} <= set(pq.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        why = str(error).rstrip(".")
        raise DataError(
            f"{path} is not a parquet file that can be read: {why}: give another, or make it again"
        ) from error


def _from_verl(row: Mapping[str, Any], path: Path, number: int) -> CorpusQuestion:
    """Parse a row in veRL's layout. Raises ValueError if the row cannot be used."""
    if fault := row_fault(row):
        raise ValueError(fault)
    data_row = QuestionRow.from_row(row)
    ids, titles = evidence_of(data_row.metadata)
    question_id = data_row.id or f"row-{number}"
    parts = _parts(data_row.metadata) or (QuestionPart(data_row.question, data_row.golds),)
    return CorpusQuestion(data_row.data_source or path.stem, question_id, parts, ids, titles)


def _from_data_set(row: Any, path: Path, number: int) -> CorpusQuestion:
    """Parse a row of a data set's own file. Raises ValueError if the row cannot be used."""
    item = parse_row(row)
    ids, titles = evidence_of(row)
    source = path.name.partition(".")[0] or path.name
    parts = (QuestionPart(item.question, item.golds),)
    return CorpusQuestion(source, item.id or f"row-{number}", parts, ids, titles)


def _parts(metadata: Mapping[str, Any]) -> tuple[QuestionPart, ...]:
    """Return the questions that a row joins; none if one of them is not a text or has no answer."""
    questions, answers = metadata.get("parts"), metadata.get("part_answers")
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers):
        return ()
    parts = tuple(map(QuestionPart, questions, map(tuple, map(as_golds, answers))))
    return parts if all(isinstance(text, str) and golds for text, golds in parts) else ()
