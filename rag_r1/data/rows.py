"""`QuestionRow`: a row of a question data set, written to parquet and read back.

veRL reads some columns by name and passes the others on: to the agent loop as keyword arguments, to the
reward manager as its non-tensor batch. The layout of a row is defined only here:

    data_source                          name under which veRL reports a validation
    prompt                               chat messages (veRL renames them to `raw_prompt`)
    ability, agent_name                  veRL's own; the agent loop that runs the row
    reward_model.ground_truth.target     gold answers
    extra_info                           id, question, index, split, protocol, and what else a source has

Writing is strict: one schema for every file, so that veRL can concatenate files of several sources.
`write_rows` takes a list, `RowWriter` any number of rows one by one. Reading is tolerant: users' own files
may lack parts, and veRL turns lists into numpy arrays. What is missing is empty; `row_fault` says whether a
row is usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.io.atomic_files import atomic_file
from rag_r1.sandbox.parquet import BATCH_ROWS, check_parquet

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that a file must have; `a.b` is the field `b` of the struct `a`.
REQUIRED_COLUMNS = (
    "prompt",
    "data_source",
    "reward_model.ground_truth",
    "extra_info.id",
    "extra_info.question",
    "extra_info.protocol",
)
AGENT_NAME = "search_agent"
#: Columns that `read_rows` reads.
COLUMNS_READ = ("data_source", "prompt", "ability", "reward_model", "extra_info")
#: Keys of `extra_info` that every row has.
_RESERVED_INFO = ("id", "question", "index", "split", "protocol")

#: Keys of `extra_info` that a set of several sources has besides, null where a source has none, with their
#: types: a name of Arrow's, or a list of one. `source_row`: position in the source's file, from 1.
#: `supporting_ids`, `supporting_titles`: the gold passages, by their ids in the corpus and by their pages.
#: `step_answers`: the answers of the steps that lead to the answer. `parts` and `part_answers`: the
#: questions that a row joins, and the gold answers of each.
SOURCE_METADATA: dict[str, Any] = {
    "source_row": "int64",
    "question_type": "string",
    "hops": "int64",
    "level": "string",
    "supporting_ids": ["string"],
    "supporting_titles": ["string"],
    "step_answers": ["string"],
    "parts": ["string"],
    "part_answers": [["string"]],
}
#: Rows that a `RowWriter` holds; also the size of a row group.
ROW_GROUP = 2048


@dataclass(frozen=True)
class QuestionRow:
    """One question with its gold answers, prompt and metadata. Unknown texts are empty."""

    question: str
    golds: tuple[str, ...]
    #: Chat messages, `{"role", "content"}`.
    prompt: tuple[dict[str, Any], ...] = ()
    #: Unique in all files of a run.
    id: str = ""
    split: str = "train"
    data_source: str = ""
    #: Name of the protocol whose prompt this is.
    protocol: str = ""
    #: Position in the file, from 0.
    index: int | None = None
    ability: str = "fact-reasoning"
    #: Further keys of `extra_info`; never None.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The row under veRL's columns, the inverse of `from_row`."""
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
        """Read a row of parquet, or from one that veRL has converted (`raw_prompt`, numpy arrays, `uid`).
        Raises nothing, whatever the row contains; an unusable prompt becomes empty."""
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
                if name not in _RESERVED_INFO and value is not None
            },
        )


def as_golds(value: Any) -> list[str]:
    """Gold answers as a list of strings.

    `value` is a string, a list, a tuple, a numpy array (as read from parquet), a ground truth `{"target":
    ...}`, or None (no golds). Lists may be nested (a list of aliases for each answer). Blank entries are left
    out; numbers become text."""
    if isinstance(value, Mapping):
        value = value.get("target")
    value = _plain(value)
    if isinstance(value, list | tuple):
        return [gold for item in value for gold in as_golds(item)]
    return [str(value)] if value is not None and str(value).strip() else []


def golds_of(reward_model: Any) -> list[str]:
    """The gold answers of a row: `reward_model.ground_truth`, or its `target`; empty if malformed."""
    return as_golds(reward_model.get("ground_truth")) if isinstance(reward_model, Mapping) else []


def step_answers_of(metadata: Any) -> list[str]:
    """The answers of the steps that lead to a row's answer, of its `metadata`; empty if it names none."""
    return as_golds(metadata.get("step_answers")) if isinstance(metadata, Mapping) else []


def row_fault(row: Mapping[str, Any]) -> str | None:
    """Why a row cannot be trained on, or None. Such a row does not end a run. Raises nothing, whatever the
    row contains; an answer counts if `QuestionRow.from_row` reads it."""
    info = row.get("extra_info")
    question = info.get("question") if isinstance(info, Mapping) else None
    if not isinstance(question, str) or not question.strip():
        return "extra_info.question is empty"
    if not golds_of(row.get("reward_model")):
        return "reward_model.ground_truth.target is empty"
    return None


def usable_prompt(prompt: Any) -> bool:
    """Whether this is a list of messages with role and text, without which `plugin/dataset.py` drops the
    row."""
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return all(
        isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in prompt
    )


def write_rows(path: str | Path, rows: Iterable[QuestionRow]) -> None:
    """Write the rows as a parquet file. The same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    table = pa.Table.from_pylist([row.to_row() for row in rows], schema=_schema_of(rows))
    with atomic_file(Path(path)) as part:
        pq.write_table(table, part)


class RowWriter:
    """Writes a parquet file row by row, in memory that does not depend on their number.

    `metadata` declares the further keys of `extra_info`, as SOURCE_METADATA does; a row with another key is
    a ValueError. The same rows give the same bytes. The file appears under its name when the block ends;
    after an error, or if the process is killed, what was there before is left.
    """

    def __init__(self, path: str | Path, metadata: Mapping[str, Any] = SOURCE_METADATA):
        self.path = Path(path)
        self.count = 0
        self._metadata = metadata
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> RowWriter:
        import pyarrow.parquet as pq

        self._declared = _schema([(name, _arrow_type(kind)) for name, kind in self._metadata.items()])
        with ExitStack() as files:
            part = files.enter_context(atomic_file(self.path))
            self._file = files.enter_context(pq.ParquetWriter(part, self._declared))
            self._open = files.pop_all()
        return self

    def add(self, row: QuestionRow) -> None:
        """Write a row. Raises ValueError for metadata that was not declared."""
        if unknown := set(row.metadata) - set(self._metadata):
            raise ValueError(f"row {row.id}: undeclared metadata {', '.join(sorted(unknown))}")
        self._rows.append(row.to_row())
        self.count += 1
        if len(self._rows) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        """Write the rows that are held, as a row group."""
        import pyarrow as pa

        self._file.write_table(pa.Table.from_pylist(self._rows, schema=self._declared))
        self._rows = []

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._open:
            if error is not None:
                raise error  # inside the stack, so that atomic_file discards the part
            if self._rows:
                self._flush()


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file of any size, as plain values, with the columns that `row_fault` and
    `QuestionRow.from_row` read. Raises DataError for one that unpacks to too much."""
    import pyarrow.parquet as pq

    check_parquet(path, COLUMNS_READ)
    with pq.ParquetFile(path) as file:
        columns = [name for name in COLUMNS_READ if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()


def _schema_of(rows: Sequence[QuestionRow]) -> pa.Schema:
    """The schema of veRL's columns, with the metadata of the rows in `extra_info`."""
    import pyarrow as pa

    metadata_type = pa.array([dict(row.metadata) for row in rows]).type if rows else ()
    return _schema([(key.name, key.type) for key in metadata_type])


def _arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of an entry of `SOURCE_METADATA`."""
    import pyarrow as pa

    return pa.list_(_arrow_type(kind[0])) if isinstance(kind, list) else pa.type_for_alias(kind)


def _schema(extra_info_fields: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """The schema of veRL's columns, with these further keys in `extra_info`."""
    import pyarrow as pa

    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    truth = pa.struct([("target", pa.list_(text))])
    info_fields = [(name, pa.int64() if name == "index" else text) for name in _RESERVED_INFO]
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(message)),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", truth)])),
            ("extra_info", pa.struct([*info_fields, *extra_info_fields])),
            ("agent_name", text),
        ]
    )


def _plain(value: Any) -> Any:
    """A numpy array or number as a Python list or number."""
    return value.tolist() if hasattr(value, "tolist") else value


def cell_text(value: Any) -> str:
    """A cell as text; the empty text for an empty or a nested one."""
    return str(value) if isinstance(value, str | Real) else ""
