"""Reads the mapped file of vectors from which the candidates of a compressed index are scored.

A search reads some hundreds of rows, which may be anywhere in the file. They are announced to the system
before the first one is read, so that the disk reads all of them at once if the file is not in memory.

Pages that were read would stay mapped into the process as long as memory is free, and in time the whole file
would be mapped. So the pages are unmapped after every thousand rows. They stay in the system's page cache,
which all servers on the machine share, and reading them again takes a microsecond or two.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.row_layout import RowLayout

#: Rows that are read before the mapped pages are released. For each row Linux maps 64 KiB around it, or the
#: whole block of the page cache that contains it: up to 2 MiB if the file was written or read in order
#: shortly before. These pages count as resident, but they are memory of the cache, not of the process.
RELEASE_AFTER = 1024


class StoredRows:
    """The `count` rows of a file, some of which `take` reads. It is thread-safe.

    Raises UserError if the file does not have exactly this number of rows.
    """

    def __init__(self, path: Path, layout: RowLayout, count: int):
        self._layout = layout
        #: Rows that were read since the pages were released. Threads may miscount it, which is harmless.
        self._read = 0
        try:
            size = path.stat().st_size
            if size != count * layout.row_bytes:
                raise UserError(
                    f"{path}: {count} rows of {layout.dimension} dimensions in {layout.kind} take "
                    f"{count * layout.row_bytes} bytes, and it has {size}. {REBUILD}"
                )
            with path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}). {REBUILD}") from None
        self._rows = np.frombuffer(self._map, np.uint8).reshape(count, layout.row_bytes)
        self._advise("MADV_RANDOM", 0, size)  # reading ahead would fetch rows that are not needed

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the float32 vectors, (rows, dimension), of these row numbers. Rising order is fastest."""
        for row in rows.tolist():
            start = row * self._layout.row_bytes
            page = start - start % mmap.PAGESIZE
            self._advise("MADV_WILLNEED", page, start + self._layout.row_bytes - page)
        vectors = self._layout.decode(self._rows[rows])
        self._read += len(rows)
        if self._read >= RELEASE_AFTER:
            self.release()
        return vectors

    def release(self) -> None:
        """Unmap the pages that were read. Any thread can read them again afterwards."""
        self._read = 0
        self._advise("MADV_DONTNEED", 0, len(self._map))

    def _advise(self, advice: str, start: int, length: int) -> None:
        """Tell the system how `length` bytes from `start` on will be used."""
        if hasattr(mmap, advice):  # some systems have no such advice
            self._map.madvise(getattr(mmap, advice), start, length)
