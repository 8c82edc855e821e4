"""Describes a source of questions: its columns, its converter and its location on the Hub.

`SourceKind.read_row` checks a row against the source before it converts it: the row must have the columns of
one of the layouts in which the source is published. FlashRAG puts further columns under `metadata`; they are
treated as columns of the row. A column that is null counts as missing. The functions above `HubSplit` are the
parts from which the converters in this package are made; they raise ValueError, saying what is wrong with a
row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.data.files.questions import (
    Question,
    clean_question,
    columns_of,
    id_of,
    keys_of,
    object_of,
    text_of,
    texts_of,
)
from rag_r1.data.files.row_files import short_text
from rag_r1.io.errors import DataError

#: Keys under which a row may have its id in the source.
IDS = ("id", "_id", "idx", "question_id", "realidx", "qid", "QuestionId")
_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"

#: A row of a source: column -> value.
Row = dict[str, Any]


def row_question(
    row: Row,
    golds: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    key: str = "question",
    options: Sequence[str] = (),
) -> Question:
    """Return the question under `key`, with `golds` (default: those of the row) and the row's id.

    `options` are the lines of a multiple-choice question, which follow its text.
    """
    text = text_of(row, key)
    golds = row_golds(row) if golds is None else golds
    return clean_question(text, golds, id_of(row, IDS), metadata, options=options)


def row_golds(row: Row) -> list[str]:
    """Return the gold answers from FlashRAG's column, or else from `answer`."""
    return texts_of(row, "golden_answers" if "golden_answers" in row else "answer")


def optional_text(row: Row, key: str) -> str | None:
    """Return the text under a key, or None if the row has no such key."""
    return text_of(row, key) if key in row else None


def optional_texts(row: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts under a key, or [] if the row has no such key or an empty value."""
    return texts_of(row, key) if row.get(key) else []


def expect(valid: object, expectation: str, value: object) -> None:
    """Raise ValueError with the message `EXPECTATION, not VALUE` unless `valid`."""
    if not valid:
        raise ValueError(f"{expectation}, not {short_text(value)}")


@dataclass(frozen=True)
class HubSplit:
    """A split of a Hub data set."""

    dataset: str
    config: str | None
    split: str
    #: The file of the repository that is read instead of the data set, if any.
    files: str | None = None

    def __str__(self) -> str:
        return f"{self.dataset} ({self.config or self.files or 'default'}, {self.split})"


def hub_splits(dataset: str, config: str | None, train: str | None, validation: str) -> dict[str, HubSplit]:
    """Return the splits of a Hub data set by role (`train`, `validation`); a `train` of None is left out."""
    splits = {"train": train, "validation": validation}
    return {role: HubSplit(dataset, config, split) for role, split in splits.items() if split}


def flashrag(config: str, train: str | None, validation: str) -> dict[str, HubSplit]:
    """Return the splits of FlashRAG's copy of a set by role; a `train` of None is left out."""
    return hub_splits(_FLASHRAG, config, train, validation)


@dataclass(frozen=True)
class SourceKind:
    """A source of questions."""

    name: str
    description: str
    #: Converts a row; raises ValueError, saying what is wrong with it.
    convert: Callable[[Row], Question]
    #: The columns of each layout; a row must have all columns of one of them.
    layouts: tuple[tuple[str, ...], ...]
    #: Columns by which a row of this source is recognised: no other source has all of them.
    own_columns: tuple[str, ...] = ()
    #: Further columns that the converter reads.
    further_columns: tuple[str, ...] = ()
    #: Columns of a CSV file that may hold a JSON list.
    list_columns: tuple[str, ...] = ("golden_answers",)
    #: Role (`train`, `validation`) -> split on the Hub.
    hub: Mapping[str, HubSplit] = field(default_factory=dict)
    #: The key under which the source's JSON file has the array of rows, if it has one.
    array_key: str | None = None
    #: The columns of the source's CSV file, if it may lack a header.
    csv_header: tuple[str, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of a table that are read."""
        columns = [column for layout in self.layouts for column in layout]
        return tuple(dict.fromkeys([*columns, *self.own_columns, *self.further_columns, *IDS, "metadata"]))

    def check_columns(self, name: str, columns: Collection[str], kinds: Mapping[str, SourceKind]) -> None:
        """Raise DataError, with the table's `name` and its columns, if it is not a table of this source.

        `kinds` has all sources by name.
        """
        if fault := self._fault(set(columns), kinds):
            raise DataError(f"{name}: {fault}; {columns_of(columns)}")

    def read_row(self, row: Any, kinds: Mapping[str, SourceKind]) -> Question:
        """Check a row and convert it to a question; `kinds` has all sources by name.

        Raises ValueError, saying what is wrong with the row.
        """
        row = object_of(row)
        metadata = row.get("metadata")
        parts = [metadata, row] if isinstance(metadata, dict) else [row]
        fields = {key: value for part in parts for key, value in part.items() if value is not None}
        if fault := self._fault(set(fields), kinds):
            null = [key for key, value in row.items() if value is None]
            empty = f" ({', '.join(map(repr, null))} null)" if null else ""
            raise ValueError(f"{fault}; the row has {keys_of(row)}{empty}")
        return self.convert(fields)

    def other_source(self, columns: Collection[str], kinds: Mapping[str, SourceKind]) -> str | None:
        """Return the fault of columns by which another source is recognised; None if none is."""
        recognised = [
            kind.name for kind in kinds.values() if kind.own_columns and set(kind.own_columns) <= set(columns)
        ]
        # A file of the source `questions` may have the columns of any other source.
        if recognised and self.name not in (*recognised, "questions"):
            return f"not of {self.name}: it looks like {' or '.join(recognised)}"
        return None

    def _fault(self, columns: set[str], kinds: Mapping[str, SourceKind]) -> str | None:
        """Return why these columns do not belong to this source, or None if they do."""
        if other := self.other_source(columns, kinds):
            return other
        if not any(columns.issuperset(layout) for layout in self.layouts):
            needed = ", or ".join(" + ".join(layout) for layout in self.layouts)
            return f"not of {self.name}, which has {needed}"
        return None
