"""The SHA-256 of a file, which may be larger than the memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path


def sha256_of_file(path: Path, progress: Callable[[int], object] = lambda count: None) -> str:
    """The SHA-256 of a file, in hex. `progress` is called with the number of bytes of each block that was
    read. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()
