"""Files that are never seen half written: the package's one way to write a record or to replace a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` that the block writes; when it is on the disk, it takes that name."""
    unfinished = path.with_name(path.name + ".part")
    yield unfinished
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file. Raises OSError, and TypeError for what JSON cannot hold."""
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
