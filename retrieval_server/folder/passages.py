"""Writes and reads the passages of an index, which are in a memory-mapped Arrow file.

Row `i` of the file belongs to row `i` of the search index. The file is a sequence of record batches of a few
thousand rows. Opening it reads only the metadata of the batches, and a passage touches a few pages. Ids come
from the corpus and must be unique. To check that without a dictionary of all ids, the writer keeps a hash of
8 bytes per row, sorts the hashes at the end, and compares the ids with equal hashes.

Pages that were read stay mapped into the process as long as memory is free, so that in time the whole text
would be resident. The store therefore unmaps its pages after every few thousand passages. The operating
system keeps them in its cache, and reading them again takes a microsecond or two.
"""

from __future__ import annotations

import hashlib
import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retrieval_server.errors import REBUILD, UserError

SCHEMA = pa.schema([("id", pa.string()), ("contents", pa.string()), ("url", pa.string())])
BATCH_ROWS = 4096
#: Bytes of ids and texts in a batch; a column must stay far below Arrow's 2 GiB limit for 32-bit offsets.
BATCH_BYTES = 16 * 2**20
#: Passages that are read before the mapped pages are released. A passage touches up to seven pages, and Linux
#: maps 64 KiB around each, so that 2,048 passages map 0.9 GB at most.
RELEASE_AFTER = 2048
#: Batches that are read in sequence before the mapped pages are released.
_MAX_MAPPED_BATCHES = 64


@dataclass(frozen=True)
class Passage:
    """One document of the corpus."""

    id: str
    #: The text that is indexed.
    contents: str
    #: The address of the document, which is only passed on to clients.
    url: str | None = None


class PassageWriter:
    """Writes passages in corpus order, as a context manager. At its end `count` and `sha256` are final.

    `sha256` covers the ids and contents instead of the file, so that it identifies the corpus itself: it is
    the same for plain and compressed files, and for every version of Arrow.
    """

    def __init__(self, path: Path):
        self.path = path
        self.count = 0
        self._digest = hashlib.sha256()
        self._ids: list[str] = []
        self._contents: list[str] = []
        self._urls: list[str | None] = []
        self._bytes = 0
        self._id_hashes = array("q")
        # The corpus may have lines without a passage. These are the first row after each gap, and its
        # position.
        self._gap_rows: list[int] = []
        self._gap_positions: list[int] = []

    @property
    def sha256(self) -> str:
        """The hash of the passages that were added so far, in hexadecimal."""
        return self._digest.hexdigest()

    def __enter__(self) -> PassageWriter:
        self._writer = pa.ipc.new_file(str(self.path), SCHEMA)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def add(self, passage: Passage, position: int) -> None:
        """Append the passage at this position of the corpus, counted from 1. Positions must increase."""
        if not self._gap_rows or position != self._position(self.count):
            self._gap_rows.append(self.count)
            self._gap_positions.append(position)
        for text in (passage.id, passage.contents):
            encoded = text.encode("utf-8")
            self._digest.update(len(encoded).to_bytes(8, "little"))
            self._digest.update(encoded)
            self._bytes += len(encoded)
        self._ids.append(passage.id)
        self._contents.append(passage.contents)
        self._urls.append(passage.url)
        self._id_hashes.append(hash(passage.id))
        self.count += 1
        if len(self._ids) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write the buffered passages as one batch."""
        if self._ids:
            columns = [pa.array(texts, pa.string()) for texts in (self._ids, self._contents, self._urls)]
            self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._ids, self._contents, self._urls, self._bytes = [], [], [], 0

    def _position(self, row: int) -> int:
        """Return the position of a row in the corpus."""
        gap = bisect_right(self._gap_rows, row) - 1
        return self._gap_positions[gap] + row - self._gap_rows[gap]

    def refuse_duplicate_ids(self, locate: Callable[[int], str]) -> None:
        """Raise UserError, which names both rows, if two rows have the same id.

        `locate` describes a position in words. Call this after the writer has been closed.
        """
        hashes = np.frombuffer(self._id_hashes, dtype=np.int64)
        ordered = np.sort(hashes)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        del ordered  # it takes 8 bytes per passage
        if not len(repeated):
            return
        store = PassageStore(self.path)
        first_rows: dict[str, int] = {}
        for row in np.flatnonzero(np.isin(hashes, repeated)).tolist():
            id_ = store[row].id
            first_row = first_rows.setdefault(id_, row)
            if first_row != row:
                locations = locate(self._position(first_row)), locate(self._position(row))
                raise UserError(same_id_message(*locations, id_))


def same_id_message(first: str, second: str, id_: str) -> str:
    """Return the error message for two locations of a corpus with the same id."""
    return f"{first} and {second} have the same id {id_!r}. Make ids unique."


class PassageStore(Sequence[Passage]):
    """A read-only, memory-mapped view of the file of a PassageWriter; `store[row]` is a Passage.

    Raises UserError if the file cannot be read or has other columns.
    """

    def __init__(self, path: Path):
        self._path = path
        self._reads = 0  # passages that were read since the pages were released
        try:
            with path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            reader = pa.ipc.open_file(pa.py_buffer(self._map))
            batches = list(self._read_batches(reader))
        except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
            raise UserError(f"{path}: not a readable Arrow file ({error}). {REBUILD}") from error
        # Older indexes do not have the column `url`.
        if reader.schema.names not in (SCHEMA.names, SCHEMA.names[:2]):
            raise UserError(f"{path}: columns {reader.schema.names} instead of {SCHEMA.names}. {REBUILD}")
        self._columns = [batch.columns for batch in batches]
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64).tolist()

    def _read_batches(self, reader: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches after reading their metadata. Mapped pages are released from time to time."""
        for batch in range(reader.num_record_batches):
            yield reader.get_batch(batch)
            if batch % _MAX_MAPPED_BATCHES == 0:
                self.release()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> Passage:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} passages")
        self._reads += 1
        if self._reads >= RELEASE_AFTER:
            self.release()
        batch = bisect_right(self._ends, row)
        return self._passage(batch, row - self._first_row(batch))

    def _first_row(self, batch: int) -> int:
        return self._ends[batch - 1] if batch else 0

    def _passage(self, batch: int, offset: int) -> Passage:
        return Passage(*(column[offset].as_py() for column in self._columns[batch]))

    def find(self, ids: Sequence[str]) -> list[Passage | None]:
        """Return the passages with these ids, in the same order; None for an unknown id.

        This scans the whole column of ids, which takes about a tenth of a second for ten million passages but
        no memory. An index of ids would take a gigabyte for the few documents that an agent opens.
        """
        keys = pa.array(ids, pa.string())
        passages: dict[str, Passage] = {}
        for batch, columns in enumerate(self._columns):
            for offset in pc.indices_nonzero(pc.is_in(columns[0], value_set=keys)).to_pylist():
                passage = self._passage(batch, offset)
                passages[passage.id] = passage
            if batch % _MAX_MAPPED_BATCHES == 0:
                self.release()
        return [passages.get(key) for key in ids]

    def release(self) -> None:
        """Unmap the pages that were read. Any thread can read them again afterwards."""
        self._reads = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def iter_contents(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the texts of the rows from `start` to `stop` (excluded; None: to the end), in row order.

        They are read from the file instead of the mapping, so that one batch is in memory at a time.
        """
        stop = len(self) if stop is None else min(stop, len(self))
        with pa.OSFile(str(self._path)) as source:
            reader = pa.ipc.open_file(source)
            for batch in range(bisect_right(self._ends, start), len(self._ends)):
                first_row = self._first_row(batch)
                if first_row >= stop:
                    return
                texts = reader.get_batch(batch).column(1)
                yield from texts[max(start - first_row, 0) : stop - first_row].to_pylist()
