"""Puts files that never change into another folder without copying them, where the file system allows it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

_COPY_BLOCK_BYTES = 16 * 2**20


def link_or_copy(source: Path, target: Path, *, progress: bool = False) -> None:
    """Hard-link a file that never changes, or copy it block by block if the file system cannot link it.

    Raises OSError, in particular FileExistsError if `target` exists, which may be a link to the source
    itself.
    """
    with suppress(OSError):
        os.link(source, target)
        return
    size = source.stat().st_size
    with (
        source.open("rb") as reader,
        target.open("xb") as writer,
        tqdm(total=size, desc="copying", unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        while block := reader.read(_COPY_BLOCK_BYTES):
            writer.write(block)
            bar.update(len(block))
