"""Files and folders that are made once: whole or not at all, however often the work is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rag_r1.io.atomic_files import atomic_file


@contextmanager
def made_once(path: Path) -> Iterator[Path]:
    """The part in which the block makes a file or a folder, which then gets its name. What a killed start has
    left of the part is removed first. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
        yield part
