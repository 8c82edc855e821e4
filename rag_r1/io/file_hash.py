"""Hashes files that may be larger than memory, by their content or only by their names and sizes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path


def sha256_of_file(path: Path, progress: Callable[[int], object] = lambda count: None) -> str:
    """Return the SHA-256 of a file in hexadecimal. `progress` is called after each block with its number
    of bytes. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def names_and_sizes_hash(path: Path) -> str:
    """Return a hash, of 16 hexadecimal digits, of the name and size of a file, or of those of all files below
    a folder, with the folder's own name. It is meant for files that take minutes to read, such as the weights
    of a large model. Raises OSError."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    sizes = json.dumps([[str(file.relative_to(path.parent)), file.stat().st_size] for file in files])
    return hashlib.sha256(sizes.encode()).hexdigest()[:16]
