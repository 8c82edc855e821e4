"""One process at a time: a lock on a file or folder itself, which leaves no lock file behind.

The lock belongs to the open descriptor and falls with its process, however that ends. Two machines that share
a folder over a network exclude each other as far as its file system passes ``flock`` on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from retrieval_server.errors import BuildError


@contextmanager
def held_alone(path: Path, refusal: str) -> Iterator[None]:
    """Hold the file or folder, which must exist. Raises BuildError(refusal) if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise BuildError(refusal)
        yield
    finally:
        os.close(descriptor)
