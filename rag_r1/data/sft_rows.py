"""Defines `SftRow`, a sample for supervised fine-tuning, and reads and writes files of such rows.

A row consists of a prompt and the pieces that follow it: turns that a policy generated, and observations that
the environment inserted. Each piece records its origin, and only a generated piece can be a training target.
So an observation always has loss weight 0, whatever its text is. sft_tokens.py encodes the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.errors import DataError
from rag_r1.sandbox.parquet import check_parquet

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_COLUMNS = ("id", "question", "protocol", "kind")
#: The columns of the parquet file, which are the fields of `SftRow`.
COLUMNS = (*_TEXT_COLUMNS, "messages", "pieces", "context_tokens", "target_tokens")


@dataclass(frozen=True)
class Piece:
    """A text after the prompt: a turn of the policy or an observation. Raises DataError for an observation
    that is a target."""

    text: str
    #: Whether the policy generated the text; False for an observation.
    generated: bool
    #: Whether the text is a training target.
    trained: bool = False

    def __post_init__(self) -> None:
        if self.trained and not self.generated:
            raise DataError("an observation is marked as a target: only what a policy generated is trained")


@dataclass(frozen=True)
class SftRow:
    """A sample, which is a prompt and its pieces. Raises DataError if none of the pieces is a target."""

    id: str
    question: str
    #: Name of the protocol.
    protocol: str
    #: The kind of sample, "whole trace" or "CONTEXT -> ACTION" (rag_r1/sft/segment.py).
    kind: str
    #: The prompt as chat messages.
    messages: tuple[dict[str, str], ...]
    pieces: tuple[Piece, ...]
    #: Number of tokens before the last target, counted when the row was made.
    context_tokens: int = 0
    #: Number of tokens of all targets, counted when the row was made.
    target_tokens: int = 0

    def __post_init__(self) -> None:
        if not any(piece.trained and piece.text for piece in self.pieces):
            raise DataError(f"the row {self.id!r} has no target")

    @property
    def targets(self) -> list[str]:
        """The texts of the targets."""
        return [piece.text for piece in self.pieces if piece.trained]

    def to_row(self) -> dict[str, Any]:
        """Return the row as a mapping from column to value."""
        return {**vars(self), "messages": list(self.messages), "pieces": [asdict(p) for p in self.pieces]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SftRow:
        """Read a row that `to_row` returned. Raises DataError for any other row."""
        try:
            pieces = tuple(Piece(p["text"], bool(p["generated"]), bool(p["trained"])) for p in row["pieces"])
            messages = tuple({"role": m["role"], "content": m["content"]} for m in row["messages"])
            values = {name: row[name] for name in COLUMNS if name not in ("messages", "pieces")}
            texts = [piece.text for piece in pieces] + [text for m in messages for text in m.values()]
            if not all(isinstance(text, str) for text in (*texts, *map(values.get, _TEXT_COLUMNS))):
                raise TypeError("a text is missing")
            return cls(**values, messages=messages, pieces=pieces)
        except (KeyError, TypeError, AttributeError) as error:
            fault = f"the row {row.get('id')!r} is not an SFT row ({error!r})"
            raise DataError(f"{fault}: make the data again, with `rag-r1 sft-data`") from error


def write_sft_rows(path: str | Path, rows: Iterable[SftRow]) -> None:
    """Write the rows as a parquet file, whose bytes depend only on the rows. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_file(Path(path)) as part:
        pq.write_table(pa.Table.from_pylist([row.to_row() for row in rows], schema=_schema()), part)


def read_sft_rows(path: str | Path) -> Iterator[SftRow]:
    """Yield the rows of a parquet file. Raises DataError, which names the file, if the file is missing or
    broken, if it lacks a column, or if a row is not an SFT row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "make it with `rag-r1 sft-data`"
    try:
        check_parquet(path, COLUMNS)
        with pq.ParquetFile(path) as file:
            if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
                raise DataError(f"{path}: has no column {', '.join(missing)}: {remedy}")
            # Fewer at a time than BATCH_ROWS, since a row is a whole episode.
            for batch in file.iter_batches(batch_size=256, columns=list(COLUMNS)):
                yield from (_row_of(path, row) for row in batch.to_pylist())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path}: there is no such file: {remedy}, or correct the path") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a parquet file that can be read ({error}): {remedy}") from error


def _row_of(path: str | Path, row: Mapping[str, Any]) -> SftRow:
    """Read a row of a file. Raises DataError, which names the file, if it is not an SFT row."""
    try:
        return SftRow.from_row(row)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _schema() -> pa.Schema:
    """Return the schema of the parquet file."""
    import pyarrow as pa

    text, flag = pa.string(), pa.bool_()
    return pa.schema(
        [
            *((name, text) for name in _TEXT_COLUMNS),
            ("messages", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("pieces", pa.list_(pa.struct([("text", text), ("generated", flag), ("trained", flag)]))),
            ("context_tokens", pa.int64()),
            ("target_tokens", pa.int64()),
        ]
    )
