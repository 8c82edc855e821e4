"""Limits the memory of a process together with its page cache, by a control group.

A limit of the process alone (`ulimit`) would leave out the page cache, from which mapped index files are
read. A control group counts both, and gives up pages of files when the limit is reached. Where systemd runs,
systemd-run can make such a group. This module makes it directly, which requires root, in the hierarchy of
version 2 or, if that has no memory controller, of version 1. Other benchmarks import it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Folder of a hierarchy, name of the file with the limit, and name of the file with the peak.
_HIERARCHIES = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
)
#: Seconds for which a group may be busy after its last process has ended.
_BUSY_S = 30.0


@dataclass(frozen=True)
class MemoryLimit:
    """A control group with a limit of memory."""

    #: None if this machine allows no group; nothing is limited then.
    folder: Path | None
    #: Name of the file with the peak.
    peak_file: str = ""

    def enter(self) -> None:
        """Put the calling process, and all processes that it starts from now on, into the group."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    @property
    def peak(self) -> int | None:
        """The most bytes that the group has used, page cache included; None if that is not known."""
        try:
            return int((self.folder / self.peak_file).read_text(encoding="ascii")) if self.folder else None
        except OSError:
            return None


@contextmanager
def memory_limit(size: int) -> Iterator[MemoryLimit]:
    """Make a group with a limit of `size` bytes, for processes that end before the block does.

    If this machine allows no group, the block runs with a MemoryLimit that limits nothing.
    """
    for root, limit_file, peak_file in _HIERARCHIES:
        folder = root / f"rag-r1-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limit_file).exists():  # no memory controller here, or an ordinary folder
                continue
            try:
                (folder / limit_file).write_text(str(size), encoding="ascii")
            except OSError:  # in a container the file may exist and not be writable
                continue
            yield MemoryLimit(folder, peak_file)
            return
        finally:
            _remove(folder)
    yield MemoryLimit(None)


def _remove(folder: Path) -> None:
    """Remove a group, which a process that has just ended may keep busy for a moment.

    Raises OSError if it is still busy after _BUSY_S.
    """
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
