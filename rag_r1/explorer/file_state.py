"""The state of a record file in the cache: how far it was read, and whether it is still the same file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from rag_r1.explorer.lines import Position
from rag_r1.explorer.sources import RecordFile
from rag_r1.protocols.actions import well_formed

#: Bytes at the begin of a file by which it is recognised.
_HEAD_BYTES = 4096
#: Most broken lines of a file that are named.
_MAX_FAULTS = 20


@dataclass
class FileState:
    """A row of the cache's table `files`: how far a file was read, and what was broken. `inode`, `size`
    (bytes) and `mtime_ns`: as they were then; `head`: of `head_of`; `base` and `offset`: the position
    (lines.py) where reading goes on; `lines` and `broken`: how many; `faults`: the first broken ones, in
    words."""

    file_id: int
    path: str
    run: str
    folder: str
    kind: str | None
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    head: bytes = b""
    base: int = 0
    offset: int = 0
    lines: int = 0
    broken: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """The position from which the file is read on."""
        return self.base, self.offset

    def add_fault(self, text: str) -> None:
        """Count a broken line, and keep what is wrong with it."""
        self.broken += 1
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(well_formed(text))


def head_of(path: Path) -> bytes:
    """A hash of the first bytes of a file; empty for a file that is shorter."""
    with path.open("rb") as file:
        data = file.read(_HEAD_BYTES)
    return hashlib.blake2b(data, digest_size=16).digest() if len(data) == _HEAD_BYTES else b""


def is_replaced(state: FileState, source: RecordFile | None) -> bool:
    """Whether `source` is gone, is another file than the one that was read, or has another run or kind."""
    if source is None or (source.run, source.kind) != (state.run, state.kind):
        return True
    try:
        current = source.path.stat()
        if current.st_ino != state.inode or current.st_size < state.size:
            return True
        if (current.st_size, current.st_mtime_ns) == (state.size, state.mtime_ns):
            return False
        if current.st_size == state.size:
            return True  # edited: another time, and nothing appended
        return bool(state.head) and head_of(source.path) != state.head
    except OSError:
        return True
