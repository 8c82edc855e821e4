"""What was freed goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from retrieval_server.memory import give_back_freed

HAS_TRIM = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")
PIECE, PIECES = 64 * 1024, 2000  # below the size from which glibc gives each piece a mapping of its own


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not HAS_TRIM, reason="this system's C library keeps no such pages, or cannot return them")
def test_memory_freed_between_what_is_kept_goes_back_to_the_system():
    pieces = [np.ones(PIECE, dtype=np.uint8) for _ in range(PIECES)]
    kept = pieces[::50]  # the heap cannot shrink: something in use stands at its end
    del pieces
    gc.collect()
    before = resident_mb()

    give_back_freed()

    assert before - resident_mb() > 0.8 * PIECE * (PIECES - len(kept)) / 2**20
    assert all(piece.min() == 1 for piece in kept)


def test_giving_back_twice_is_no_error():
    give_back_freed()
    give_back_freed()
