"""Files that lines are appended to: each line in one write, for the owner only, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any


def open_to_append(path: Path) -> int:
    """Opens a file to append and to read, and returns its descriptor. A file that is not there is made, for
    its owner only: questions and documents may be confidential on a shared machine. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def json_line(value: Any) -> bytes:
    """Returns a JSON value as a line. Lone surrogates, which a policy can emit, are kept."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def append_whole(file: int, data: bytes, end: int) -> None:
    """Append to a file that nobody else appends to, and whose end is at the byte `end`. If that fails, such
    as on a full disk, the file is cut back to that end. Raises OSError."""
    try:
        if os.write(file, data) != len(data):  # the first sign of a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(file, end)
        raise
