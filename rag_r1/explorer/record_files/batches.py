"""Reads the unread lines of record files as batches of rows for the cache.

A batch has rows, and the states of their files after these rows, so that one transaction can store both, and
the next process goes on where the cache ends. Broken lines are counted, and the first ones are described.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.explorer.record_files.file_state import FileState, head_of
from rag_r1.explorer.record_files.lines import Line, whole_lines
from rag_r1.explorer.rows import row_of
from rag_r1.io.bounded_json import read_json_line

#: Maximum number of rows in a batch, and of the bytes of their lines.
_BATCH_ROWS, _BATCH_BYTES = 2048, 16 << 20


@dataclass
class Reading:
    """The progress of a refresh, in files and bytes; all values are 0 while nothing is read."""

    files: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


class PendingFile(NamedTuple):
    """A file that is new or has grown, with its state in the cache and its present status."""

    state: FileState
    status: os.stat_result

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that were appended."""
        return self.status.st_size - min(self.state.size, self.status.st_size)


class Batch(NamedTuple):
    """Rows, and the states of their files after these rows. The states are copies, since reading goes on
    while a batch is written."""

    rows: list[dict[str, Any]]
    states: list[FileState]


class BatchReader:
    """Reads files one after the other. `next_tid` is the number of the first row; `reading` is advanced."""

    def __init__(self, next_tid: int, reading: Reading):
        self._next_tid, self._reading = next_tid, reading
        self._rows: list[dict[str, Any]] = []
        self._states: dict[int, FileState] = {}
        self._n_bytes = 0

    def batches(self, pending: Iterable[PendingFile]) -> Iterator[Batch]:
        """Yield the rows of all files in batches; a batch may have rows of several files."""
        for state, status in pending:
            yield from self._full_batches(state, status)
        if self._states:
            yield self._take()

    def _full_batches(self, state: FileState, status: os.stat_result) -> Iterator[Batch]:
        """Read a file to its end, and yield the batches that become full on the way. The state gets its new
        size at the end only: until then the file counts as grown."""
        path, head = Path(state.path), state.head
        state.inode, state.mtime_ns = status.st_ino, status.st_mtime_ns
        self._states[state.file_id] = state
        try:
            head = head_of(path, status.st_size)
            for line in whole_lines(path, state.position):
                self._add(line, state)
                if len(self._rows) >= _BATCH_ROWS or self._n_bytes >= _BATCH_BYTES:
                    yield self._take()
                    self._states[state.file_id] = state
        except OSError as error:
            # This may pass. With its old size in the cache, the file is read again at the next start.
            self._states[state.file_id] = replace(state)
            state.add_fault(f"{path.name}: it cannot be read further ({error})")
        except zlib.error as error:
            # This does not pass. Reading goes on after the damage, with the members that will be appended.
            state.add_fault(f"{path.name}: it cannot be read further ({error})")
            state.base, state.offset = status.st_size, 0
        state.size, state.head = status.st_size, head

    def _add(self, line: Line, state: FileState) -> None:
        """Add the row of a line, if it has a record, and advance the state of its file."""
        row = _row_or_fault(line.data, state)
        state.base, state.offset = line.next
        start, end = line.position, line.next
        # Of a gzip file only whole members count, since offsets are in unpacked bytes.
        is_gzip = state.path.endswith(".gz")
        self._reading.bytes_done += end.base - start.base if is_gzip else end.offset - start.offset
        if row is None:
            return
        length = len(line.data or b"")
        row |= {"tid": self._next_tid, "file_id": state.file_id, "length": length}
        row["base"], row["offset"] = start
        self._next_tid += 1
        self._rows.append(row)
        self._n_bytes += length

    def _take(self) -> Batch:
        """Return what has been read since the last batch."""
        batch = Batch(self._rows, [replace(state) for state in self._states.values()])
        self._rows, self._states, self._n_bytes = [], {}, 0
        return batch


def _row_or_fault(data: bytes | None, state: FileState) -> dict[str, Any] | None:
    """Make the row of a line; None if the line is empty, or broken, which is counted as a fault."""
    state.lines += 1
    if data is not None and not data.strip():
        return None
    try:
        if data is None:
            raise ValueError("the line is longer than a record can be")
        return row_of(read_json_line(data), state.run, state.kind)
    except (ValueError, RecursionError) as error:
        state.add_fault(f"{Path(state.path).name}, line {state.lines}: {error}"[:300])
        return None
