"""Opens the files that a user names: a pipe without a writer would keep a command waiting for ever."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO


def open_ordinary(path: str | Path) -> BinaryIO:
    """Opens a file to read its bytes. Raises OSError, also for a pipe or a device."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    return path.open("rb")
