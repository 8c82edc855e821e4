"""Writes and replaces files atomically, so that no other process ever sees a partly written one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that the block must write. The file is then synced and renamed to `path`.

    If the block fails, `path` stays as it was, and what the block has written is left beside it until the
    next attempt overwrites it. Only one process at a time may replace a path. Raises OSError.
    """
    unfinished = path.with_name(path.name + ".part")
    yield unfinished
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file.

    Raises OSError, TypeError for a value that JSON cannot represent, and ValueError for a text that UTF-8
    cannot.
    """
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
