"""Reads how much memory the processes of this machine, or of this container, can still get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class _ControlGroup:
    """A Linux control group, whose files contain a container's memory limit and its use of memory."""

    folder: Path
    #: The name of the file that contains the limit in bytes.
    limit_file: str
    #: The name of the file that contains the used bytes.
    usage_file: str
    #: The entries of `memory.stat` with the bytes of the page cache.
    cache_entries: tuple[str, ...]

    def free_bytes(self) -> int | None:
        """Return the bytes that are left, with those of the page cache; None if there is no limit."""
        try:
            limit = int((self.folder / self.limit_file).read_text(encoding="ascii"))  # "max": no limit
            used = int((self.folder / self.usage_file).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return max(0, limit - max(0, used - self._cached_bytes()))

    def _cached_bytes(self) -> int:
        """Return the bytes of the page cache; 0 if the system does not provide them."""
        try:
            lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        pairs = (line.partition(" ") for line in lines)
        return sum(int(number) for name, _, number in pairs if name in self.cache_entries)


#: The group in version 2 and in version 1 of control groups.
_GROUPS = (
    _ControlGroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current", ("inactive_file", "active_file")),
    _ControlGroup(
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def available_memory() -> int | None:
    """Return the bytes that processes can still get, with those of the page cache.

    In a container the result is at most what its limit leaves. It is None if the system does not provide it.
    """
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    limits = [free_in_group for group in _GROUPS if (free_in_group := group.free_bytes()) is not None]
    return min([free, *limits])
