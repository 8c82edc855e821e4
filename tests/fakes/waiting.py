"""Waits in a test for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Until it holds; fails after some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
