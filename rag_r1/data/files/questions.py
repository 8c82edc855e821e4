"""A question with its gold answers, and how a row of a file is read as one.

A row is `{"question", "golden_answers" | "answers" | "answer", "id" | "_id" | "idx"}`, where the answers are
a string or a list of strings and the id may be missing. That covers RAG-R1's own JSON, FlashRAG's and
R1-Searcher's JSONL, and the raw files of HotpotQA and 2WikiMultihopQA. A list `supporting_titles`, the titles
of the gold passages, is preserved, so that their recall can be measured. Other layouts are in
`data_process/sources/`. question_file.py reads whole files. What is read is data, and is never used as
anything but text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.data.files.row_files import short_text
from rag_r1.protocols.actions import has_lone_surrogate

ANSWER_KEYS = ("golden_answers", "answers", "answer")
_ID_KEYS = ("id", "_id", "idx")
#: The titles of a question's gold passages.
_TITLES = "supporting_titles"
#: All keys of a row.
KEYS = ("question", *ANSWER_KEYS, *_ID_KEYS, _TITLES)


@dataclass(frozen=True)
class Question:
    """A question (white space folded), its gold answers (at least one) and its source's id, if it has one.

    `row` is its position in the file, from 1; it is for messages, and is ignored in comparisons. `metadata`:
    further facts of the source, under the keys of `rag_r1.data.rows.SOURCE_METADATA`.
    """

    question: str
    golds: tuple[str, ...]
    id: str | None = None
    row: int | None = field(default=None, compare=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


def parse_row(row: Any) -> Question:
    """Read one row as a Question. Raises ValueError that says what is wrong with it."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not an object with keys but {type(row).__name__}")
    if "question" not in row:
        raise ValueError(f"`question` is missing; the row has {keys_of(row)}")
    question = text_of(row, "question")
    key = next((key for key in ANSWER_KEYS if row.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no answer: needs one of {', '.join(ANSWER_KEYS)}; the row has {keys_of(row)}")
    titles = texts_of(row, _TITLES) if isinstance(row.get(_TITLES), list) else None
    metadata = {_TITLES: [str(title) for title in titles]} if titles else None
    return clean_question(question, texts_of(row, key), id_of(row), metadata, empty=f"`{key}` is empty")


def text_of(row: Mapping[str, Any], key: str) -> str:
    """The text under a key of the row. Raises ValueError if there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{key}` must be a text, not {short_text(value)}")
    return value


def texts_of(row: Mapping[str, Any], key: str) -> list[Any]:
    """The texts (or numbers) under a key, in a list or alone. Raises ValueError if it holds anything else."""
    values = row[key] if isinstance(row[key], list) else [row[key]]
    if not all(_is_plain(value) for value in values):
        raise ValueError(f"`{key}` must be a text or a list of texts, not {short_text(row[key])}")
    return values


def id_of(row: Mapping[str, Any], keys: Collection[str] = _ID_KEYS) -> str | None:
    """The source's own id of the row, under the first of `keys` that has one; None without any."""
    return next((str(row[key]) for key in keys if _is_plain(row.get(key)) and row[key] != ""), None)


def clean_question(
    question: str,
    golds: Iterable[Any],
    row_id: str | None,
    metadata: Mapping[str, Any] | None = None,
    *,
    options: Sequence[str] = (),
    empty: str = "there is no answer",
) -> Question:
    """Make a Question with white space folded, `options` as further lines of it, and the golds without blank
    and repeated ones; metadata that is None is left out. Raises ValueError if no gold is left (with the
    message `empty`) or if a text is not one."""
    full_text = "\n".join(" ".join(line.split()) for line in (question, *options))
    golds = tuple(dict.fromkeys(text for gold in golds if (text := str(gold).strip())))
    if not golds:
        raise ValueError(empty)
    metadata = {key: value for key, value in (metadata or {}).items() if value is not None}
    if any(map(has_lone_surrogate, (full_text, *golds, row_id or "", *_texts_in(list(metadata.values()))))):
        raise ValueError("holds half of a character (a lone surrogate): make the file UTF-8")
    return Question(full_text, golds, row_id, metadata=metadata)


def _texts_in(value: Any) -> Iterable[str]:
    """The texts in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts_in(part)


def _is_plain(value: Any) -> bool:
    """Whether this is a text, or a number that can be written as text."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def keys_of(row: Iterable[Any]) -> str:
    """A row's keys, or a table's columns, for a message of one line; quoted, as they are data too."""
    names = [name if isinstance(name, str) and name.isidentifier() else repr(name) for name in row]
    text = ", ".join(names) or "no keys"
    return text if len(text) <= 120 else text[:117] + "..."
