"""Reads questions with their gold answers from a file or from the Hub.

A row is `{"question", "golden_answers" | "answers" | "answer", "id" | "_id" | "idx"}`, where the answers are
a string or a list of strings and the id may be missing. That covers RAG-R1's own JSON, FlashRAG's and
R1-Searcher's JSONL, and the raw files of HotpotQA and 2WikiMultihopQA. row_files.py reads the file formats,
bad_rows.py handles rows that cannot be used. What is read is data, and is never used as anything but text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_process.bad_rows import BadRows
from data_process.row_files import ACCEPTED, DataError, open_rows, short

_ANSWER_KEYS = ("golden_answers", "answers", "answer")
_ID_KEYS = ("id", "_id", "idx")
_KEYS = ("question", *_ANSWER_KEYS, *_ID_KEYS)


@dataclass(frozen=True)
class Question:
    """A question (white space folded), its gold answers (at least one) and its source's id, if it has one.

    `row` is its place in the file, from 1; it is for messages, and is ignored in comparisons.
    """

    question: str
    golds: tuple[str, ...]
    id: str | None = None
    row: int | None = field(default=None, compare=False)


@dataclass
class Source:
    """The usable rows of one file or split, and those that are not."""

    name: str
    questions: list[Question] = field(default_factory=list)
    n_read: int = 0
    bad: BadRows = field(default_factory=BadRows)

    @property
    def n_malformed(self) -> int:
        """Rows that cannot be used."""
        return self.bad.count

    @property
    def malformed(self) -> list[str]:
        """The first of these rows, as `row 3: no answer`."""
        return [row.removeprefix(f"{self.name}, ") for row in self.bad.first]


def read_file(path: str | Path) -> Source:
    """All questions of a file (see row_files.py). Raises DataError if none is usable."""
    path = Path(path)
    with open_rows(path, _KEYS, _ANSWER_KEYS) as (columns, rows):
        return collect(str(path), rows, columns, f". Accepted are {ACCEPTED}")


def read_hub(dataset: str, config: str | None, split: str) -> Source:
    """One split of a Hub data set, through the package `datasets`. Raises DataError with the remedy."""
    name = f"{dataset} ({config or 'default'}, {split})"
    remedy = "give local files instead: --train FILE --validation FILE"
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"cannot load {name}: the package `datasets` is missing (pip install datasets), or {remedy}"
        ) from error
    try:
        rows = datasets.load_dataset(dataset, config, split=split)
        columns = rows.column_names
        rows = rows.select_columns([key for key in _KEYS if key in columns])
    except Exception as error:  # many kinds, of the package itself and of its HTTP clients
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(
            f"cannot load {name} from the Hub: {type(error).__name__}: {first_line}. Offline, {remedy}"
        ) from error
    return collect(name, enumerate(rows, 1), columns)


def collect(
    name: str, rows: Iterable[tuple[int, Any]], columns: Collection[str] | None = None, hint: str = ""
) -> Source:
    """Numbered rows as a Source; an entry that is a ValueError stands for a row that could not be decoded.

    `columns`: those of a table, whose rows have no others. Raises DataError if no row is usable, or if a
    required column is missing.
    """
    source = Source(name)
    if columns:
        _check_columns(name, columns)
    for number, row in rows:
        source.n_read += 1
        try:
            source.questions.append(replace(parse_row(row), row=number))
        except ValueError as error:
            source.bad.add(f"{name}, row {number}", error)
    if not source.questions:
        told = "; ".join(source.malformed) or "it has no rows"
        raise DataError(f"no usable question in {name}: {told}{hint}")
    return source


def _check_columns(name: str, columns: Collection[str]) -> None:
    there = f"its columns are {_keys(columns)}"
    if "question" not in columns:
        raise DataError(f"{name} has no column `question`: {there}. Rename the column of questions")
    if not set(columns) & set(_ANSWER_KEYS):
        wanted = ", ".join(_ANSWER_KEYS)
        raise DataError(f"{name} has no column of answers: {there}. Name it one of {wanted}")


def parse_row(row: Any) -> Question:
    """One row as a Question. Raises ValueError saying what is wrong with it."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not an object with keys but {type(row).__name__}")
    if "question" not in row:
        raise ValueError(f"`question` is missing; the row has {_keys(row)}")
    question = row["question"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"`question` must be a text, not {short(question)}")
    key = next((key for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no answer: needs one of {', '.join(_ANSWER_KEYS)}; the row has {_keys(row)}")
    answers = row[key] if isinstance(row[key], list) else [row[key]]
    if not all(_is_plain(answer) for answer in answers):
        raise ValueError(f"`{key}` must be a text or a list of texts, not {short(row[key])}")
    golds = tuple(dict.fromkeys(text for answer in answers if (text := str(answer).strip())))
    if not golds:
        raise ValueError(f"`{key}` is empty")
    own_id = next((str(row[key]) for key in _ID_KEYS if _is_plain(row.get(key)) and row[key] != ""), None)
    for text in (question, *golds, own_id or ""):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("holds half of a character (a lone surrogate), which is not text")
    return Question(" ".join(question.split()), golds, own_id)


def _is_plain(value: Any) -> bool:
    """Whether this is a text, or a number that can be written as text."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value == value


def _keys(row: Iterable[Any]) -> str:
    """A row's keys, or a table's columns, for a message of one line; quoted, as they are data too."""
    names = [name if isinstance(name, str) and name.isidentifier() else repr(name) for name in row]
    text = ", ".join(names) or "no keys"
    return text if len(text) <= 120 else text[:117] + "..."
