"""Opens a file that the user named, unless it is a pipe or a device, which could block a command forever."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO


def open_ordinary(path: str | Path) -> BinaryIO:
    """Open a file for reading bytes. Raises OSError, also for a pipe or a device."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    return path.open("rb")
