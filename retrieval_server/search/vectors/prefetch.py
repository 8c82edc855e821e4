"""Prefetches a mapped index file into memory in the background.

A server that maps its index starts in seconds, but its first searches wait for the disk, page by page.
Reading the file once, in order and in large blocks, brings it into the system's page cache, which all
processes that map it share. Searches are answered meanwhile. A file that does not fit into the free memory is
not read, since its end would only displace its beginning. All indexes of a process share the free memory. The
system counts pages that were read for one index as free, so this module adds up what all open indexes have
reserved.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)
_BLOCK = 8 * 2**20  # bytes
#: The open prefetches of this process that have read, or are reading, their files.
_reading: weakref.WeakSet[Prefetch] = weakref.WeakSet()
_lock = threading.Lock()  # for `_reading`


class Prefetch:
    """Reads `files` in a separate thread.

    Nothing is read if these files, and those of all other open prefetches of this process, need more than the
    `available` bytes (None: there is no limit). A file that several prefetches read counts once. Raises
    OSError if a file does not exist.
    """

    def __init__(self, files: Sequence[Path], available: int | None = None):
        self._files = list(files)
        #: The size in bytes of each file, by its device and inode.
        self._sizes = {(stat.st_dev, stat.st_ino): stat.st_size for stat in map(Path.stat, self._files)}
        self._size = sum(self._sizes.values())
        self._read_bytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        with _lock:
            sizes = dict(self._sizes)
            for other in _reading:
                sizes |= other._sizes
            reserved = sum(sizes.values()) - self._size
            fits = available is None or self._size + reserved <= available
            if fits:
                _reading.add(self)
        if not fits:
            log.warning(
                "%s: %d bytes do not fit into the %d bytes of free memory%s; searches read it from disk",
                ", ".join(map(str, self._files)),
                self._size,
                available,
                f", of which {reserved} are other indexes'" if reserved else "",
            )
            return
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    @property
    def share(self) -> float | None:
        """The share of the bytes, 0 to 1, that has been read; None if nothing is read."""
        if self._thread is None:
            return None
        return self._read_bytes / self._size if self._size else 1.0

    def wait(self) -> None:
        """Return when everything has been read or reading was stopped."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop reading and release the reserved memory."""
        self._stop.set()
        self.wait()
        with _lock:
            _reading.discard(self)

    def _work(self) -> None:
        """Read the files. Runs in the separate thread."""
        block = bytearray(_BLOCK)
        try:
            for path in self._files:
                with path.open("rb", buffering=0) as stream:
                    while not self._stop.is_set() and (size := stream.readinto(block)):
                        self._read_bytes += size
        except OSError as error:  # a search that meets the same fault reports it
            log.warning("reading %s ahead stopped: %s", path, error)
