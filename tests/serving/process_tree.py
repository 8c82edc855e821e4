"""The processes that a command has started, by Linux's /proc."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, by whichever thread, and those that they have: with what
    tells one from a later one of the same number."""
    processes, parents = {}, {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if rest[0] != "Z":
            parents[int(place.parent.name)] = int(rest[1]), rest[19]
    ends = {pid}
    while ends:
        more = {child: started for child, (parent, started) in parents.items() if parent in ends}
        processes |= more
        ends = set(more)
    return processes


def is_there(pid: int, started: str) -> bool:
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return rest[0] != "Z" and rest[19] == started
