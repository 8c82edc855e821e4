"""Reads questions with their gold answers from a file or from the Hub.

A row is `{"question", "golden_answers" | "answers" | "answer", "id" | "_id" | "idx"}`, where the answers are
a string or a list of strings and the id may be missing. That covers RAG-R1's own JSON, FlashRAG's and
R1-Searcher's JSONL, and the raw files of HotpotQA and 2WikiMultihopQA. Files are a JSON array, JSON lines or
parquet. A row that cannot be used does not end the run: it is counted, and the first few are told with their
file and row number. What is read is data, and only ever becomes text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ANSWER_KEYS = ("golden_answers", "answers", "answer")
_ID_KEYS = ("id", "_id", "idx")
_KEYS = ("question", *_ANSWER_KEYS, *_ID_KEYS)

#: Malformed rows that are told in full; the others are counted.
TOLD = 5


class DataError(ValueError):
    """A source that cannot be used at all; the message names it and the remedy."""


@dataclass(frozen=True)
class Question:
    """A question (white space folded), its gold answers (at least one) and its source's id, if it has one."""

    question: str
    golds: tuple[str, ...]
    id: str | None = None


@dataclass
class Source:
    """The usable rows of one file or split, and what was wrong with the others."""

    name: str
    questions: list[Question] = field(default_factory=list)
    n_read: int = 0
    n_malformed: int = 0
    malformed: list[str] = field(default_factory=list)  # the first `TOLD`, as "row 3: no question"


def read_file(path: str | Path) -> Source:
    """All questions of a `.parquet`, `.json` or `.jsonl` file. Raises DataError if none is usable."""
    path = Path(path)
    try:
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
        return collect(str(path), rows)
    except (OSError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


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
        rows = rows.select_columns([key for key in _KEYS if key in rows.column_names])
    except Exception as error:  # the package raises a dozen kinds, of its own and of its HTTP clients
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(
            f"cannot load {name} from the Hub: {type(error).__name__}: {first_line}. Offline, {remedy}"
        ) from error
    return collect(name, enumerate(rows, 1))


def collect(name: str, rows: Iterable[tuple[int, Any]]) -> Source:
    """Numbered rows as a Source; an entry that is a ValueError stands for a row that could not be decoded."""
    source = Source(name)
    for number, row in rows:
        source.n_read += 1
        try:
            source.questions.append(parse_row(row))
        except ValueError as error:
            source.n_malformed += 1
            if source.n_malformed <= TOLD:
                source.malformed.append(f"row {number}: {error}")
    if not source.questions:
        told = "; ".join(source.malformed) or "it has no rows"
        raise DataError(f"no usable question in {name}: {told}")
    return source


def parse_row(row: Any) -> Question:
    """One row as a Question. Raises ValueError saying what is wrong with it."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not an object with keys but {type(row).__name__}")
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"`question` must be a text, not {_short(question)}")
    key = next((key for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no answer: needs one of {', '.join(_ANSWER_KEYS)}")
    answers = row[key] if isinstance(row[key], list) else [row[key]]
    if not all(_is_plain(answer) for answer in answers):
        raise ValueError(f"`{key}` must be a text or a list of texts, not {_short(row[key])}")
    golds = tuple(dict.fromkeys(text for answer in answers if (text := str(answer).strip())))
    if not golds:
        raise ValueError(f"`{key}` is empty")
    own_id = next((str(row[key]) for key in _ID_KEYS if _is_plain(row.get(key)) and row[key] != ""), None)
    for text in (question, *golds, own_id or ""):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("holds half of a character (a lone surrogate), which is not text")
    return Question(" ".join(question.split()), golds, own_id)


def _is_plain(value: Any) -> bool:
    """Text, or a number that stands for itself as text."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value == value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """A JSON array, or one JSON value a line; numbered from 1, by element or by line."""
    with path.open("rb") as file:
        if _first_byte(file) == b"[":
            try:
                yield from enumerate(json.load(file), 1)
            except ValueError as error:
                raise DataError(f"{path} begins as a JSON array but is not one: {error}") from error
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _decode(line)


def _first_byte(file: Any) -> bytes:
    """The first byte that is not white space or a byte-order mark; the file is put back to its start."""
    byte = file.read(1)
    while byte and (byte.isspace() or byte in b"\xef\xbb\xbf"):
        byte = file.read(1)
    file.seek(0)
    return byte


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return ValueError(f"not JSON: {_short(str(error))}")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        wanted = [key for key in _KEYS if key in file.schema_arrow.names]
        batches = file.iter_batches(columns=wanted)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path} is not a parquet file: {error}") from error
