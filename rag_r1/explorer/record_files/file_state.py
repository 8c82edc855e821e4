"""The state of a record file in the cache: how far it has been read, and whether it is still the same file.

Files of running trainings grow, so only the appended part is read. A file that was replaced or edited has to
be read again from its beginning.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from rag_r1.explorer.record_files.lines import Position
from rag_r1.explorer.record_files.sources import RecordFile
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.protocols.actions import well_formed

#: A file is recognised by a hash of at most this number of its first bytes.
_HEAD_BYTES = 4096
#: Maximum number of broken lines in a file that are described.
_MAX_FAULTS = 20


@dataclass
class FileState:
    """A row of the cache's table `files`: how far a file has been read, and what was broken in it."""

    file_id: int
    path: str
    #: Name and folder of the run to which the file belongs.
    run: str
    folder: str
    #: Kind of the run; None if it follows from each record.
    kind: str | None
    #: Inode, size in bytes and modification time when the file was last read.
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    #: Hash of the first bytes (`head_of`) when the file had `size` bytes; empty if it was not read yet.
    head: bytes = b""
    #: The parts of the position at which reading continues.
    base: int = 0
    offset: int = 0
    #: Number of lines that have been read, and of those that were broken.
    lines: int = 0
    broken: int = 0
    #: Descriptions of the first broken lines.
    faults: list[str] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """The position at which reading continues."""
        return Position(self.base, self.offset)

    def add_fault(self, text: str) -> None:
        """Count a broken line, and keep its description."""
        self.broken += 1
        if len(self.faults) < _MAX_FAULTS:
            self.faults = [*self.faults, well_formed(text)]  # a new list, since copies share the old one


def head_of(path: Path, size: int) -> bytes:
    """Return a hash of the first bytes of a file that has, or had, `size` bytes. Raises OSError."""
    with open_ordinary(path) as file:
        return hashlib.blake2b(file.read(min(size, _HEAD_BYTES)), digest_size=16).digest()


def is_replaced(state: FileState, source: RecordFile | None) -> bool:
    """Return whether a file is no longer the one that was read: it has disappeared (`source` is None), was
    replaced or edited, or now belongs to another run or kind."""
    if source is None or (source.run, source.kind) != (state.run, state.kind):
        return True
    try:
        current = source.path.stat()
        if current.st_ino != state.inode or current.st_size < state.size:
            return True
        if (current.st_size, current.st_mtime_ns) == (state.size, state.mtime_ns):
            return False
        if current.st_size == state.size:
            return True  # written to although nothing was appended, so it was edited
        return bool(state.head) and head_of(source.path, state.size) != state.head
    except OSError:
        return True
