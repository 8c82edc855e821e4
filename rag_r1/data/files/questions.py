"""Parses rows of data files as questions with gold answers.

A row is `{"question", "golden_answers" | "answers" | "answer", "id" | "_id" | "idx"}`, where the answers are
a string or a list of strings and the id may be missing. This covers RAG-R1's own JSON, the JSONL of FlashRAG
and R1-Searcher, and the raw files of HotpotQA and 2WikiMultihopQA; other layouts are in
`data_process/sources/`. A list `supporting_titles`, the titles of the gold passages, is kept, so that their
recall can be measured. Whole files are read by question_file.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.data.files.row_files import BrokenRowError, short_text
from rag_r1.protocols.actions import has_lone_surrogate

ANSWER_KEYS = ("golden_answers", "answers", "answer")
_ID_KEYS = ("id", "_id", "idx")
#: The key with the titles of a question's gold passages.
_TITLES = "supporting_titles"
#: The keys under which a cell of a CSV file may be a JSON list.
LIST_KEYS = (*ANSWER_KEYS, _TITLES)
#: All keys of a row.
KEYS = ("question", *ANSWER_KEYS, *_ID_KEYS, _TITLES)


@dataclass(frozen=True)
class Question:
    """A question with its gold answers."""

    #: The text, with white space folded.
    question: str
    #: The gold answers, at least one.
    golds: tuple[str, ...]
    #: The source's own id, if it has one.
    id: str | None = None
    #: Position in the file, from 1, for messages.
    row: int | None = field(default=None, compare=False)
    #: Further facts of the source, under the keys of `rag_r1.data.row_schema.SOURCE_METADATA`.
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


def parse_row(row: Any) -> Question:
    """Parse a row. Raises ValueError with the reason if it is not a question; a BrokenRowError in place of a
    row is raised itself."""
    row = object_of(row)
    if "question" not in row:
        raise ValueError(f"`question` is missing; the row has {keys_of(row)}")
    question = text_of(row, "question")
    key = next((key for key in ANSWER_KEYS if row.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no answer: needs one of {', '.join(ANSWER_KEYS)}; the row has {keys_of(row)}")
    titles = texts_of(row, _TITLES) if isinstance(row.get(_TITLES), list) else None
    metadata = {_TITLES: titles or None}
    return clean_question(question, texts_of(row, key), id_of(row), metadata, empty=f"`{key}` is empty")


def object_of(row: Any) -> dict[str, Any]:
    """Return a row that is an object. Raises ValueError for any other row; a BrokenRowError in place of a row
    is raised itself."""
    if isinstance(row, BrokenRowError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not an object with keys but {type(row).__name__}")
    return row


def text_of(row: Mapping[str, Any], key: str) -> str:
    """Return the text under a key of the row. Raises ValueError if there is no text, or only white space."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{key}` must be a text that is not empty, not {short_text(value)}")
    return value


def texts_of(row: Mapping[str, Any], key: str) -> list[str]:
    """Return the text under a key, or the texts if it has a list, with numbers as texts. Raises ValueError
    for values of another type."""
    values = row[key] if isinstance(row[key], list) else [row[key]]
    if not all(_is_text_or_number(value) for value in values):
        raise ValueError(f"`{key}` must be a text or a list of texts, not {short_text(row[key])}")
    return [str(value) for value in values]


def id_of(row: Mapping[str, Any], keys: Collection[str] = _ID_KEYS) -> str | None:
    """Return the source's own id of the row from the first of `keys` that has one; None if none has."""
    return next((str(row[key]) for key in keys if _is_text_or_number(row.get(key)) and row[key] != ""), None)


def clean_question(
    question: str,
    golds: Iterable[str],
    row_id: str | None,
    metadata: Mapping[str, Any] | None = None,
    *,
    options: Sequence[str] = (),
    empty: str = "there is no answer",
) -> Question:
    """Make a Question: fold the question's white space, append `options` as further lines of its text, strip
    the golds, and drop blank and repeated golds and metadata that is None. Raises ValueError if no gold is
    left (with the message `empty`) or if a text contains a lone surrogate."""
    full_text = "\n".join(" ".join(line.split()) for line in (question, *options))
    golds = tuple(dict.fromkeys(text for gold in golds if (text := gold.strip())))
    if not golds:
        raise ValueError(empty)
    metadata = {key: value for key, value in (metadata or {}).items() if value is not None}
    if any(map(has_lone_surrogate, (full_text, *golds, row_id or "", *_texts_in(list(metadata.values()))))):
        raise ValueError("holds half of a character (a lone surrogate): make the file UTF-8")
    return Question(full_text, golds, row_id, metadata=metadata)


def _texts_in(value: Any) -> Iterable[str]:
    """Yield a text, or the texts in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts_in(part)


def _is_text_or_number(value: Any) -> bool:
    """Return whether this is a text or a finite number."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def columns_of(columns: Collection[str]) -> str:
    """Return a table's columns for a message, with the remedy if they seem to be separated by another
    character than expected."""
    text = f"its columns are {keys_of(columns)}"
    if len(columns) == 1 and any(separator in name for name in columns for separator in ",;|\t"):
        text += " (separate them with commas in a .csv, and with tabs in a .tsv)"
    return text


def keys_of(keys: Iterable[Any]) -> str:
    """Return a row's keys or a table's columns for a message of one line. Names that are not identifiers are
    quoted, because they may contain any characters."""
    names = [name if isinstance(name, str) and name.isidentifier() else repr(name) for name in keys]
    text = ", ".join(names) or "no keys"
    return text if len(text) <= 120 else text[:117] + "..."
