"""Exclusive locks on files and folders, or on a lock file made for them.

The lock belongs to the open descriptor and falls with its process, however that ends. Two machines that share
a folder over a network exclude each other as far as its file system passes `flock` on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from retrieval_server.errors import UserError


@contextmanager
def exclusive_lock(path: Path, refusal: str) -> Iterator[None]:
    """Lock the file or folder, which must exist, in the block.

    Raises UserError(refusal) if another process holds it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise UserError(refusal)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def named_lock(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file of that name in the block, for work whose own files come and go; then it is removed.

    One that a killed process has left is taken over. Raises UserError(refusal) if another process holds it.
    """
    descriptor = _lock_file(path, refusal)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: nobody else can hold a file of that name yet
        os.close(descriptor)


def _lock_file(path: Path, refusal: str) -> int:
    """The descriptor of a lock file, made if necessary, that this process holds. Raises UserError."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        try:
            if not lock_descriptor(descriptor, blocking=False):
                raise UserError(refusal)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it between the two lines above: make it again
