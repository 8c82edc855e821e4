"""Reads which files are locked by any process.

Linux lists the locks of all processes. To try a lock instead would disturb the commands that take it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: Linux's list of locks, and in a line of it the device (in hexadecimal numbers) and inode of the file.
_LOCKS = Path("/proc/locks")
_LOCKED_FILE = re.compile(r" ([0-9a-f]+):([0-9a-f]+):(\d+) ")
#: Device (major, minor) and inode, which identify a file.
FileKey = tuple[int, int, int]


def locked_files() -> frozenset[FileKey]:
    """Return the keys of locked files, which only Linux lists; empty on other systems."""
    try:
        lines = _LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    matches = (_LOCKED_FILE.search(line) for line in lines if "FLOCK" in line)
    return frozenset(_make_key(int(m[1], 16), int(m[2], 16), int(m[3])) for m in matches if m)


def file_key(path: Path) -> FileKey | None:
    """Return the key of a file or folder; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _make_key(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def _make_key(major: int, minor: int, inode: int) -> FileKey:
    """Return the key of a file with this device and inode.

    File systems without a device have the major number 0. The minor number is then left out, because on some
    of them, such as Btrfs, the one in the list of locks differs from the one of `stat`.
    """
    return major, minor if major else 0, inode
