"""Makes files and folders that appear only when they are complete, however often the work is killed.

Inputs of the phases, such as models and indexes, are made this way: if one exists, it is complete and is used
again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rag_r1.io.atomic_files import atomic_file


@contextmanager
def made_once(path: Path) -> Iterator[Path]:
    """Yield a temporary path, at which the block makes a file or a folder; it is then moved to `path`.

    The leftovers of a killed attempt are removed first. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
        yield part
