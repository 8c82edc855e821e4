"""The description of a source: its columns, its reader and its place on the Hub.

`SourceKind.read_row` checks a row against the source before it is read: it must have the columns of one of
the layouts in which the source is published. FlashRAG puts further columns under `metadata`; they count as
the row's own. A column that is null counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.data.files.questions import Question, clean_question, id_of, keys_of, text_of, texts_of
from rag_r1.data.files.row_files import short_text
from rag_r1.io.errors import DataError

#: Keys under which a row may have its source's own id.
IDS = ("id", "_id", "idx", "question_id", "realidx", "qid", "QuestionId")
_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"

Row = dict[str, Any]


def row_question(
    row: Row,
    golds: Iterable[Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    key: str = "question",
    options: Sequence[str] = (),
) -> Question:
    """The question under `key`, with these golds or those of the row, and the source's own id. Raises
    ValueError saying what is wrong with the row."""
    text = text_of(row, key)
    return clean_question(
        text, row_golds(row) if golds is None else golds, id_of(row, IDS), metadata, options=options
    )


def row_golds(row: Row) -> list[Any]:
    """The gold answers in FlashRAG's column, else in `answer`."""
    return texts_of(row, "golden_answers" if "golden_answers" in row else "answer")


def optional_text(row: Row, key: str) -> str | None:
    """The text under a key; None if the row has no such key."""
    return text_of(row, key) if key in row else None


def optional_texts(row: Mapping[str, Any], key: str) -> list[Any]:
    """The texts under a key; none if the row has no such key, or nothing under it."""
    return texts_of(row, key) if row.get(key) else []


def expect(valid: object, expectation: str, value: object) -> None:
    """Raise ValueError, `EXPECTATION, not VALUE`, unless `valid`."""
    if not valid:
        raise ValueError(f"{expectation}, not {short_text(value)}")


@dataclass(frozen=True)
class HubSplit:
    """A split of a Hub data set; `files`: a file of its repository that is read instead of the set."""

    dataset: str
    config: str | None
    split: str
    files: str | None = None

    def __str__(self) -> str:
        return f"{self.dataset} ({self.config or self.files or 'default'}, {self.split})"


def flashrag(config: str, train: str | None, validation: str) -> dict[str, HubSplit]:
    """FlashRAG's copy of a set; `train` is None if it has none."""
    splits = {"train": train, "validation": validation}
    return {role: HubSplit(_FLASHRAG, config, split) for role, split in splits.items() if split}


@dataclass(frozen=True)
class SourceKind:
    """A source of questions. `convert` raises ValueError, saying what is wrong with a row."""

    name: str
    about: str
    convert: Callable[[dict[str, Any]], Question]
    #: The columns of each layout; a row has all of one of them.
    layouts: tuple[tuple[str, ...], ...]
    #: Columns that, together, only its raw rows have.
    marks: tuple[str, ...] = ()
    #: Further columns that are read.
    more: tuple[str, ...] = ()
    #: Columns of a CSV file that may hold a JSON list.
    lists: tuple[str, ...] = ("golden_answers",)
    #: Its splits on the Hub, `train` and `validation`.
    hub: Mapping[str, HubSplit] = field(default_factory=dict)
    #: First key of its JSON file, if the rows stand in an array under it.
    within: str | None = None
    #: The columns of its CSV file, if that has no header.
    header: tuple[str, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read of a table."""
        columns = [column for layout in self.layouts for column in layout]
        return tuple(dict.fromkeys([*columns, *self.marks, *self.more, *IDS, "metadata"]))

    def check_columns(self, name: str, columns: Collection[str], kinds: Mapping[str, SourceKind]) -> None:
        """Raise DataError, naming the table and its columns, if it is not one of this source."""
        if fault := self._fault(set(columns), kinds):
            raise DataError(f"{name}: {fault}; its columns are {keys_of(columns)}")

    def read_row(self, row: Any, kinds: Mapping[str, SourceKind]) -> Question:
        """The question of a row. Raises ValueError saying what is wrong with the row; a ValueError in its
        place is raised as it is."""
        if isinstance(row, ValueError):
            raise row
        if not isinstance(row, dict):
            raise ValueError(f"not an object with keys but {type(row).__name__}")
        inner = row.get("metadata")
        parts = [inner, row] if isinstance(inner, dict) else [row]
        fields = {key: value for part in parts for key, value in part.items() if value is not None}
        if fault := self._fault(set(fields), kinds):
            null = [key for key, value in row.items() if value is None]
            empty = f" ({', '.join(map(repr, null))} null)" if null else ""
            raise ValueError(f"{fault}; the row has {keys_of(row)}{empty}")
        return self.convert(fields)

    def _fault(self, columns: set[str], kinds: Mapping[str, SourceKind]) -> str | None:
        """Why something with these columns is not of this source."""
        looks = [
            kind.name
            for kind in kinds.values()
            if kind.marks and columns.issuperset(kind.marks) and kind.name != self.name
        ]
        has_marks = self.marks and columns.issuperset(self.marks)
        if looks and not has_marks and self.name != "questions":
            return f"not of {self.name}: it looks like {' or '.join(looks)}"
        if not any(columns.issuperset(layout) for layout in self.layouts):
            needed = ", or ".join(" + ".join(layout) for layout in self.layouts)
            return f"not of {self.name}, which has {needed}"
        return None
