"""What was freed goes back to the system, again and again."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from retrieval_server import memory

PIECE, PIECES = 64 * 1024, 2000  # below the size from which glibc gives each piece a mapping of its own


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(memory._trim is None, reason="this system's C library has no malloc_trim")
def test_memory_freed_between_what_is_kept_goes_back_to_the_system():
    pieces = [np.ones(PIECE, dtype=np.uint8) for _ in range(PIECES)]
    kept = pieces[::50]  # the heap cannot shrink: something in use stands at its end
    del pieces
    gc.collect()
    before = resident_mb()

    memory.give_back_freed()

    assert before - resident_mb() > 0.8 * PIECE * (PIECES - len(kept)) / 2**20
    assert all(piece.min() == 1 for piece in kept)


def test_it_is_given_back_again_and_again_until_told_to_stop(monkeypatch):
    others = set(threading.enumerate())  # a server that ran in this process may have one of its own
    times = threading.Semaphore(0)
    monkeypatch.setattr(memory, "give_back_freed", times.release)
    done = memory.keep_giving_back(every_s=0.001)
    try:
        assert all(times.acquire(timeout=20) for _ in range(3))
    finally:
        done.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(20)
        assert not thread.is_alive()
