"""Passes the path of a file to a job, as the bytes of the path decoded as Latin-1.

Messages to a worker are JSON, which has no bytes. A text with the path itself would not do: a worker runs in
Python's isolated mode, and may decode file names in another way than this process.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_argument(path: str | Path) -> str:
    """Return a path, made absolute, as an argument of a job."""
    return os.fsencode(Path(path).absolute()).decode("latin-1")


def path_of(argument: str) -> str:
    """Return the path that `path_argument` converted to this argument."""
    return os.fsdecode(argument.encode("latin-1"))
