"""A small disk of its own, a tmpfs, that can be filled up."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Disk:
    """`leave(room)`: fill it but for so many bytes. `clear()`: all of the room is there again."""

    path: Path

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def leave(self, room: int) -> None:
        self.clear()
        free = os.statvfs(self.path)
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - room))

    def fill(self) -> None:
        """Fill it to the last byte, also while others write and remove files."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))

    def clear(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Disk]:
    """A disk of `size` bytes at `place`. Skips the test where none can be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip(f"left out: no tmpfs can be mounted here ({os.strerror(ctypes.get_errno())})")
    try:
        yield Disk(place)
    finally:
        assert libc.umount2(os.fsencode(place), 2) == 0  # MNT_DETACH
