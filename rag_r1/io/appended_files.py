"""Opens files for appending lines, and appends each line completely or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any


def open_to_append(path: Path) -> int:
    """Open a file for appending and reading, and return its descriptor. A new file is readable for its
    owner only, since questions and documents may be confidential on a shared machine. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def json_line(value: Any) -> bytes:
    """Return a JSON value encoded as a line. Lone surrogates, which a policy can emit, are kept."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def append_whole(file: int, data: bytes, end: int) -> None:
    """Append to a file of which this process is the only writer, and whose length is `end` bytes. If the
    write fails, for example on a full disk, the file is truncated to that length. Raises OSError."""
    try:
        if os.write(file, data) != len(data):  # the first sign of a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(file, end)
        raise
