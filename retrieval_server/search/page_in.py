"""Reads a mapped index file from end to end in the background, so that searches soon find it in memory.

A server that maps its index starts in seconds, but its first searches wait for the disk, page by page.
Reading the file once, in order and in large blocks, brings it into the system's page cache, which all
processes that map it share. Searches are answered meanwhile. A file that does not fit into the free memory is
left alone: its end would only push out its beginning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)
_BLOCK = 8 * 2**20  # bytes
_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container; "max" where there is none


def available_memory() -> int | None:
    """Bytes that processes can still get, with the page cache; None where the system does not say.

    In a container with a limit of memory, at most that limit.
    """
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        return min(free, int(_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return free


class PageIn:
    """Reads ``files`` in a thread of its own. ``share`` is the part that has been read, from 0 to 1.

    ``share`` is None if there is less than their size in ``available`` bytes, so that none is read.
    """

    def __init__(self, files: Sequence[Path], available: int | None = None):
        self._files = list(files)
        self._size = sum(path.stat().st_size for path in self._files)
        self._read = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if available is not None and self._size > available:
            log.warning(
                "%s: %d bytes do not fit into the %d bytes of free memory; searches read it from disk",
                ", ".join(map(str, self._files)),
                self._size,
                available,
            )
            return
        self._thread = threading.Thread(target=self._work, name="page-in", daemon=True)
        self._thread.start()

    @property
    def share(self) -> float | None:
        """The share of the bytes that has been read; None if they are not read at all."""
        if self._thread is None:
            return None
        return self._read / self._size if self._size else 1.0

    def wait(self) -> None:
        """Return when everything is read, or reading was stopped."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self.wait()

    def _work(self) -> None:
        block = bytearray(_BLOCK)
        try:
            for path in self._files:
                with path.open("rb", buffering=0) as stream:
                    while not self._stop.is_set() and (size := stream.readinto(block)):
                        self._read += size
        except OSError as error:  # a search would meet the same fault, and report it
            log.warning("reading %s ahead stopped: %s", path, error)
