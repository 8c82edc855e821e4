"""The mapped file of vectors from which candidates of a compressed index are scored.

A search reads some hundreds of rows that lie anywhere in the file. They are announced to the system before
the first is read, so that on a cold file the disk works on all of them at once instead of on one after
another.

Pages that were read stay mapped into the process while memory is free, and would in time amount to the whole
file. So they are unmapped after every few thousand rows; they stay in the system's cache, which all servers
of the machine share, and reading them again costs a microsecond or two.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.row_layout import RowLayout

#: Rows read before the mapped pages are released. With each, Linux maps 64 KiB around it, or the whole block
#: of the page cache that holds it: up to 2 MiB where the file was written or read in order shortly before.
#: They count as resident, but are the cache's memory and not the process's own.
RELEASE_AFTER = 1024


class StoredRows:
    """The `count` rows of a file, of which `take` reads some. Safe in several threads.

    Raises UserError if the file does not hold exactly so many rows.
    """

    def __init__(self, path: Path, layout: RowLayout, count: int):
        self._layout = layout
        self._read = 0  # rows since the pages were released; threads may miscount it, which does no harm
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

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The float32 vectors (numbers, dimension) of these rows; fastest in rising order."""
        for row in numbers.tolist():
            start = row * self._layout.row_bytes
            page = start - start % mmap.PAGESIZE
            self._advise("MADV_WILLNEED", page, start + self._layout.row_bytes - page)
        vectors = self._layout.decode(self._rows[numbers])
        self._read += len(numbers)
        if self._read >= RELEASE_AFTER:
            self.release()
        return vectors

    def release(self) -> None:
        """Unmap the pages that were read; reading them again, in any thread, gives the same."""
        self._read = 0
        self._advise("MADV_DONTNEED", 0, len(self._map))

    def _advise(self, advice: str, start: int, length: int) -> None:
        """Tell the system how the bytes from `start` on will be used."""
        if hasattr(mmap, advice):  # not on every system
            self._map.madvise(getattr(mmap, advice), start, length)
