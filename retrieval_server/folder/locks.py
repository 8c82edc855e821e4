"""Exclusive locks on existing files and folders, and on lock files that are created for the purpose.

`exclusive_lock` leaves no trace. The lock follows its file or folder when that is renamed, and does not hold
for another one that gets the name. So work that removes its files and writes new ones takes a `named_lock`
beside them.

A lock belongs to an open descriptor and is released when its process ends, for whatever reason. Machines that
share a folder over a network exclude each other if the file system supports `flock` over the network.
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
    """Lock an existing file or folder during the block.

    Raises UserError(refusal) if the lock is held elsewhere, even in this process. Raises FileNotFoundError if
    there is no such file, and another OSError if it cannot be opened or its file system has no locks.
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
    """Create and lock a file with this name during the block, for work that replaces its own files.

    The file is removed at the end, and one that a killed process has left is taken over. Raises
    UserError(refusal) if the lock is held elsewhere, even in this process, and OSError if the file cannot be
    created or its file system has no locks.
    """
    descriptor = _lock_file(path, refusal)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is released, so that no other process holds this file
        os.close(descriptor)


def _lock_file(path: Path, refusal: str) -> int:
    """Create the lock file if necessary, lock it, and return its descriptor. Raises errors as its caller."""
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
        os.close(descriptor)  # its holder removed the file after it was opened here: create it again
