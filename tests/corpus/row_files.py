"""Files of JSON lines that the tests of the corpus check write and read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def written(path: Path, rows: Iterable[Any]) -> Path:
    """The path of a file with these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
