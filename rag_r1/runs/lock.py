"""A folder lock: one process at a time works in a folder.

It is an flock on a file, which the system releases when the last process ends that has it open, however it
ends. `inherited` decides who that is: with it, the children of the holder have it too, so that a training
that outlives a killed command keeps its folder; without it, the next start gets the lock and may end what was
left behind (processes.py). (filelock's locks are not inherited, and a release by one process releases them
for all.)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold_lock(folder: Path, busy: Exception, *, inherited: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is made, for the length of a block. Raises `busy` if another process
    has it, and OSError if the folder cannot be used."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(descriptor, inherited)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        yield
    finally:
        os.close(descriptor)
