"""A limit of memory for one process and its page cache: a control group of this machine. Read by other
benchmarks.

A limit of the process alone (`ulimit`) would leave out the page cache, from which mapped index files are
read; a control group counts both, and gives pages of files up when the limit is reached. systemd-run makes
one where systemd runs. Here it is made by hand, which needs to be root, in the hierarchy of version 2 or,
where that has no memory controller, of version 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Folder of a hierarchy, the file of its limit, and that of the most that was used.
_HIERARCHIES = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
)
_BUSY_S = 30.0


@dataclass(frozen=True)
class MemoryLimit:
    """A group; `folder` None: this machine gave none, and nothing is limited."""

    folder: Path | None
    peak_file: str = ""

    def enter(self) -> None:
        """Put the calling process, and all that it starts from now on, into the group."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    @property
    def peak(self) -> int | None:
        """The most bytes that the group has used, with the page cache; None where they are not told."""
        try:
            return int((self.folder / self.peak_file).read_text(encoding="ascii")) if self.folder else None
        except OSError:
            return None


@contextmanager
def memory_limit(size: int) -> Iterator[MemoryLimit]:
    """A group with a limit of `size` bytes, removed at the end; its processes must have ended by then."""
    for root, limit, peak in _HIERARCHIES:
        folder = root / f"rag-r1-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limit).exists():  # no memory controller here, or an ordinary folder
                continue
            try:
                (folder / limit).write_text(str(size), encoding="ascii")
            except OSError:  # a container may show the file and refuse to have it written
                continue
            yield MemoryLimit(folder, peak)
            return
        finally:
            _remove(folder)
    yield MemoryLimit(None)


def _remove(folder: Path) -> None:
    """Remove a group. A process that has just ended may keep it busy for a moment."""
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
