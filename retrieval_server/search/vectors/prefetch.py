"""Prefetches a mapped index file into memory in the background.

A server that maps its index starts in seconds, but its first searches wait for the disk, page by page.
Reading the file once, in order and in large blocks, brings it into the system's page cache, which all
processes that map it share. Searches are answered meanwhile. A file that does not fit into the free memory is
left alone: its end would only push out its beginning. The indexes of a process share what is free: pages that
were read for one count as free to the system, so what was read for all open ones is added up here.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)
_BLOCK = 8 * 2**20  # bytes
_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class _ControlGroup:
    """The files of a control group that tell a container's limit of memory, and what it uses of that.

    `limit` and `use` name files of one number in `folder`; `pages` are entries of `memory.stat`.
    """

    folder: Path
    limit: str
    use: str
    pages: tuple[str, ...]

    def free(self) -> int | None:
        """Bytes up to the limit; pages of files count as free, for they are given up. None: no limit."""
        try:
            limit = int((self.folder / self.limit).read_text(encoding="ascii"))  # "max" where there is none
            used = int((self.folder / self.use).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return max(0, limit - max(0, used - self._page_bytes()))

    def _page_bytes(self) -> int:
        """Bytes of pages of files; 0 where the system does not say."""
        try:
            lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        pairs = (line.partition(" ") for line in lines)
        return sum(int(number) for name, _, number in pairs if name in self.pages)


#: Version 2, then version 1.
_GROUPS = (
    _ControlGroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current", ("inactive_file", "active_file")),
    _ControlGroup(
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def available_memory() -> int | None:
    """Bytes that processes can still get, with the page cache; None where the system does not say.

    In a container with a limit of memory, at most what it has left.
    """
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    limits = [free_in_group for group in _GROUPS if (free_in_group := group.free()) is not None]
    return min([free, *limits])


class Prefetch:
    """Reads `files` in a thread of its own. `share` is the part that has been read, from 0 to 1.

    `share` is None if `available` bytes are too few for them and the files of all others that are open in
    this process; then none is read. A file that several read counts once.
    """

    def __init__(self, files: Sequence[Path], available: int | None = None):
        self._files = list(files)
        self._sizes = dict(_sizes(self._files))
        self._size = sum(self._sizes.values())
        self._read = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        with _lock:
            sizes = dict(self._sizes)
            for reading in _reading:
                sizes |= reading._sizes
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
        with _lock:
            _reading.discard(self)

    def _work(self) -> None:
        """Read the files, in the thread of its own."""
        block = bytearray(_BLOCK)
        try:
            for path in self._files:
                with path.open("rb", buffering=0) as stream:
                    while not self._stop.is_set() and (size := stream.readinto(block)):
                        self._read += size
        except OSError as error:  # a search would meet the same fault, and report it
            log.warning("reading %s ahead stopped: %s", path, error)


#: Those of this process that are open, and have read, or are reading, their files.
_reading: weakref.WeakSet[Prefetch] = weakref.WeakSet()
_lock = threading.Lock()


def _sizes(files: Sequence[Path]) -> Iterator[tuple[tuple[int, int], int]]:
    """Each file's identity on this machine, and its bytes."""
    for path in files:
        status = path.stat()
        yield (status.st_dev, status.st_ino), status.st_size
