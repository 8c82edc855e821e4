"""Defines `QuestionRow`, a row of a question data set, and reads and writes such rows as parquet.

veRL reads some columns by name and passes the others on: to the agent loop as keyword arguments, and to the
reward manager in its non-tensor batch. Only this module knows the layout of a row, except for the types of
its columns (row_schema.py):

    data_source                          name under which veRL reports a validation
    prompt                               chat messages (veRL renames them to `raw_prompt`)
    ability                              kind of task, a column that veRL's data sets have
    agent_name                           name of the agent loop that runs the row
    reward_model.ground_truth.target     gold answers
    extra_info                           id, question, index, split, protocol, and metadata of the source

Writing is strict: `write_rows` writes all rows at once, and `RowWriter` one by one. The schema of the columns
is fixed, so veRL can concatenate files of several sources. Reading is tolerant, because users' own files may
lack parts and veRL turns lists into numpy arrays: what is missing becomes empty; `row_fault` finds the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from rag_r1.data.row_schema import RESERVED_INFO, SOURCE_METADATA, arrow_type, metadata_types, row_schema
from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.errors import DataError
from rag_r1.sandbox.parquet import BATCH_ROWS, check_parquet

#: Columns that a file must have; `a.b` is the field `b` of the struct `a`.
REQUIRED_COLUMNS = (
    "prompt",
    "data_source",
    "reward_model.ground_truth",
    "extra_info.id",
    "extra_info.question",
    "extra_info.protocol",
)
#: The name under which veRL finds our agent loop.
AGENT_NAME = "search_agent"
#: Columns that `read_rows` reads.
COLUMNS_READ = ("data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name")
#: Number of rows that a `RowWriter` keeps in memory and writes as a row group.
ROW_GROUP = 2048


@dataclass(frozen=True)
class QuestionRow:
    """A question with its gold answers, prompt and metadata. Unknown texts are empty."""

    question: str
    golds: tuple[str, ...]
    #: Chat messages, `{"role", "content"}`.
    prompt: tuple[dict[str, Any], ...] = ()
    #: Unique among all files of a run.
    id: str = ""
    split: str = "train"
    data_source: str = ""
    #: Name of the protocol from which the prompt was made.
    protocol: str = ""
    #: Position in the file, from 0.
    index: int | None = None
    ability: str = "fact-reasoning"
    #: Further keys of `extra_info`; never None.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Return the row in veRL's columns, from which `from_row` can read it."""
        return {
            "data_source": self.data_source,
            "prompt": [dict(message) for message in self.prompt],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": {"target": list(self.golds)}},
            "extra_info": {
                "id": self.id,
                "question": self.question,
                "index": self.index,
                "split": self.split,
                "protocol": self.protocol,
                **self.metadata,
            },
            "agent_name": AGENT_NAME,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> QuestionRow:
        """Read a row of parquet, either directly or after veRL has converted it (`raw_prompt`, numpy arrays,
        `uid`). Raises nothing, whatever the row contains; an unusable prompt becomes empty."""
        info = row.get("extra_info")
        info = info if isinstance(info, Mapping) else {}
        prompt = _plain(row.get("prompt", row.get("raw_prompt")))
        index = info.get("index")
        return cls(
            question=cell_text(info.get("question")),
            golds=tuple(golds_of(row.get("reward_model"))),
            prompt=tuple(map(dict, prompt)) if usable_prompt(prompt) else (),
            id=cell_text(info.get("id", row.get("uid"))),
            split=cell_text(info.get("split")) or "train",
            data_source=cell_text(row.get("data_source")),
            protocol=cell_text(info.get("protocol")),
            index=int(index) if isinstance(index, Integral) else None,
            ability=cell_text(row.get("ability")),
            metadata={
                name: _plain(value)
                for name, value in info.items()
                if name not in RESERVED_INFO and value is not None
            },
        )


def as_golds(value: Any) -> list[str]:
    """Return gold answers as a flat list of strings.

    `value` is a string, a list, a tuple, a numpy array (as read from parquet), a ground truth `{"target":
    ...}`, or None (no golds). Lists may be nested, with a list of aliases for each answer. Blank entries are
    left out, as are NaN, which pandas reads from an empty cell, and other mappings. Numbers become text.
    """
    if isinstance(value, Mapping):
        return as_golds(value.get("target"))
    value = _plain(value)
    if isinstance(value, list | tuple):
        return [gold for item in value for gold in as_golds(item)]
    return [str(value)] if value is not None and value == value and str(value).strip() else []


def golds_of(reward_model: Any) -> list[str]:
    """Return the gold answers in a row's `reward_model`; none if it is malformed."""
    return as_golds(reward_model.get("ground_truth")) if isinstance(reward_model, Mapping) else []


def step_answers_of(metadata: Any) -> list[str]:
    """Return the answers of the intermediate steps that a row's metadata names, if any."""
    return as_golds(metadata.get("step_answers")) if isinstance(metadata, Mapping) else []


def row_fault(row: Mapping[str, Any]) -> str | None:
    """Return why a row lacks a question or a gold answer, or None if it has both; raises no error."""
    info = row.get("extra_info")
    question = info.get("question") if isinstance(info, Mapping) else None
    if not isinstance(question, str) or not question.strip():
        return "extra_info.question is empty"
    if not golds_of(row.get("reward_model")):
        return "reward_model.ground_truth.target is empty"
    return None


def usable_prompt(prompt: Any) -> bool:
    """Return whether a prompt is a list of messages with role and text, as `plugin/dataset.py` needs it."""
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return all(
        isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in prompt
    )


def write_rows(path: str | Path, rows: Iterable[QuestionRow]) -> None:
    """Write the rows as a parquet file, whose bytes depend only on the rows. Raises DataError as
    `metadata_types` does, and OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    schema = row_schema(metadata_types([row.metadata for row in rows]))
    table = pa.Table.from_pylist([row.to_row() for row in rows], schema=schema)
    with atomic_file(Path(path)) as part:
        pq.write_table(table, part)


class RowWriter:
    """Context manager that writes a parquet file row by row, in memory that does not grow with their number.

    The bytes of the file depend only on the rows. The file appears under its name when the block ends; after
    an error, or if the process is killed, an earlier file of that name is unchanged. Raises OSError if it
    cannot be written.
    """

    def __init__(self, path: str | Path, metadata: Mapping[str, Any] = SOURCE_METADATA):
        """`metadata` declares the further keys of `extra_info` and their types, as SOURCE_METADATA does."""
        #: The file, which is there when the block has ended.
        self.path = Path(path)
        #: Number of rows that have been added.
        self.count = 0
        self._metadata = metadata
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> RowWriter:
        import pyarrow.parquet as pq

        self._row_schema = row_schema([(name, arrow_type(kind)) for name, kind in self._metadata.items()])
        with ExitStack() as files:
            part = files.enter_context(atomic_file(self.path))
            self._file = files.enter_context(pq.ParquetWriter(part, self._row_schema))
            self._open = files.pop_all()
        return self

    def add(self, row: QuestionRow) -> None:
        """Add a row. Raises ValueError if it has a metadata key that was not declared."""
        if unknown := set(row.metadata) - set(self._metadata):
            raise ValueError(f"row {row.id}: undeclared metadata {', '.join(sorted(unknown))}")
        self._rows.append(row.to_row())
        self.count += 1
        if len(self._rows) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        """Write the rows in memory as a row group."""
        import pyarrow as pa

        self._file.write_table(pa.Table.from_pylist(self._rows, schema=self._row_schema))
        self._rows = []

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._open:
            if error is not None:
                raise error  # inside the stack, so that atomic_file discards the part
            if self._rows:
                self._flush()


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file as plain Python values, with the columns that `row_fault` and
    `QuestionRow.from_row` use. Raises DataError for a broken file or one that takes too much memory, and
    OSError if there is no file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_parquet(path, COLUMNS_READ)
    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in COLUMNS_READ if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read to its end ({error}): make it again") from error


def _plain(value: Any) -> Any:
    """Return a numpy array or number as a Python list or number, and any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def cell_text(value: Any) -> str:
    """Return a cell of a table as text; an empty cell (NaN in pandas) or a nested one gives an empty text."""
    return str(value) if isinstance(value, str | Real) and value == value else ""
