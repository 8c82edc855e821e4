"""What was freed goes back to the system, again and again."""

from __future__ import annotations

import threading

import pytest

from retrieval_server.encode import malloc as memory

from ..running import run_python

# Pieces are below the size from which glibc gives each a mapping of its own, and some are kept, so that the
# heap cannot shrink by itself.
FREED = """
import gc, os
from pathlib import Path
import numpy as np
from retrieval_server.encode import malloc as memory

PIECE, PIECES = 64 * 1024, 2000

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

pieces = [np.ones(PIECE, dtype=np.uint8) for _ in range(PIECES)]
kept = pieces[::50]
del pieces
gc.collect()
before = resident()
memory.trim_heap()
assert all(piece.min() == 1 for piece in kept)
print((before - resident()) / (PIECE * (PIECES - len(kept))))
"""


@pytest.mark.skipif(memory._trim is None, reason="this system's C library has no malloc_trim")
def test_memory_freed_between_what_is_kept_goes_back_to_the_system():
    # In a process of its own: a server that ran in this one may give memory back at any moment.
    assert float(run_python(FREED)) > 0.8


ONE_HEAP = """
import sys, threading
from pathlib import Path
from retrieval_server.encode import malloc as memory

if sys.argv[1] == "one":
    memory.limit_heaps(1)
import numpy as np

kept = []
work = lambda: kept.extend(np.ones(megabytes * 2**20, dtype=np.uint8) for megabytes in (1, 5, 12, 30))
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
size = 0
for line in Path("/proc/self/maps").read_text().splitlines():
    if line.endswith("[heap]"):
        first, last = line.split()[0].split("-")
        size += int(last, 16) - int(first, 16)
print(size // 2**20)
"""


@pytest.mark.skipif(memory._set is None, reason="this system's C library has no mallopt")
def test_with_one_heap_all_threads_take_large_blocks_from_it_unless_the_user_has_set_something():
    """The process prints the megabytes of its heap."""
    assert int(run_python(ONE_HEAP, "one")) >= 3 * (1 + 5 + 12 + 30)
    assert int(run_python(ONE_HEAP, "as glibc chooses")) < 48
    assert int(run_python(ONE_HEAP, "one", MALLOC_ARENA_MAX="2")) < 48


def test_it_is_given_back_again_and_again_until_told_to_stop(monkeypatch):
    others = set(threading.enumerate())  # a server that ran in this process may have one of its own
    times = threading.Semaphore(0)
    monkeypatch.setattr(memory, "trim_heap", times.release)
    done = memory.trim_heap_regularly(interval_s=0.001)
    try:
        assert all(times.acquire(timeout=20) for _ in range(3))
    finally:
        done.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(20)
        assert not thread.is_alive()
