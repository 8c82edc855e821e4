"""The cores that this process may use, which can be fewer than the machine has."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Their number, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
