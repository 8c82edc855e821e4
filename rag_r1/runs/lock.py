"""A lock that lets only one process at a time work in a folder.

The lock is an flock on a file in the folder, or on the folder itself. The operating system releases it when
the last process that has the file open ends, for whatever reason. With `inherited`, child processes that are
started with the holder's open files have it open, too, so that a training that outlives a killed command
keeps its folder. Without it, the next invocation of the command obtains the lock, and may end the processes
that were left behind (processes.py). The package filelock is not used: its locks are not inherited, and a
release by one process releases them for all.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rag_r1.runs.errors import RunError


@contextmanager
def hold_out(
    out: Path, folder: Path | None = None, *, name: str | None = "lock", mode: int = 0o777
) -> Iterator[None]:
    """Hold the lock of a command's --out folder, or of the subfolder `folder`, while the block runs. `name`
    and `mode` are those of `hold_lock`. Raises RunError if another process holds the lock, or the folder
    cannot be used."""
    # The stack releases the lock. With `hold_lock` in a `with` statement inside the `try`, an OSError of the
    # caller's block would be taken for one of the folder.
    with ExitStack() as stack:
        busy_error = RunError(f"{out} is in use by another process: wait for it, or choose another --out")
        try:
            stack.enter_context(hold_lock(folder or out, busy_error, name=name, mode=mode))
        except OSError as error:
            raise RunError(f"cannot use the folder {out}: {error.strerror}; choose another --out") from error
        yield


@contextmanager
def hold_lock(
    folder: Path,
    busy_error: Exception | None,
    *,
    inherited: bool = False,
    name: str | None = "lock",
    mode: int = 0o777,
) -> Iterator[None]:
    """Hold the lock of a folder while the block runs. The folder is created if it does not exist.

    - `busy_error`: raised if another process holds the lock; None to wait for the lock instead
    - `inherited`: whether child processes keep the lock
    - `name`: the name of the locked file; None to lock the folder itself
    - `mode`: the permissions of a new folder

    Raises OSError if the folder cannot be used.
    """
    folder.mkdir(mode, parents=True, exist_ok=True)
    path, flags = (folder, os.O_RDONLY) if name is None else (folder / name, os.O_CREAT | os.O_RDWR)
    descriptor = os.open(path, flags, 0o666)
    os.set_inheritable(descriptor, inherited)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy_error else 0))
        except BlockingIOError as error:
            assert busy_error is not None  # otherwise flock would have waited
            raise busy_error from error
        yield
    finally:
        os.close(descriptor)
