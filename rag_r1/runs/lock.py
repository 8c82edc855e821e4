"""A folder lock: one process at a time works in a folder.

It is an flock on a file in the folder, or on the folder itself, which the system releases when the last
process ends that has it open, however it ends. With `inherited`, the children of the holder have it open too,
so that a training that outlives a killed command keeps its folder; without it, the next start gets the lock
and may end the processes that were left behind (processes.py). (filelock's locks are not inherited, and
a release by one process releases them for all.)
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
    """Hold the folder that a command was given as --out, by its own lock or that of a `folder` in it, for the
    length of a block. `name`, `mode`: as for `hold_lock`. Raises RunError if another process has the lock, or
    if the folder cannot be used."""
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
    """Hold the lock of a folder, which is made with this `mode`, for the length of a block. `name`: of the
    locked file in it; None locks the folder itself. If another process has the lock, raises `busy_error`, or
    waits if that is None. Raises OSError if the folder cannot be used."""
    folder.mkdir(mode, parents=True, exist_ok=True)
    if name is None:
        descriptor = os.open(folder, os.O_RDONLY)
    else:
        descriptor = os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o666)
    os.set_inheritable(descriptor, inherited)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy_error else 0))
        except BlockingIOError as error:
            assert busy_error is not None  # without it the call has waited
            raise busy_error from error
        yield
    finally:
        os.close(descriptor)
