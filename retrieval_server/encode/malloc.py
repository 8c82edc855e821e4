"""Configures the C library's memory allocator for a process that encodes.

The encoder allocates and frees blocks of different sizes for every batch. By default glibc gives each thread
heaps of 64 MB. A large block is mapped separately until a block of its size has been freed; from then on such
blocks come from the heaps too and fragment them more and more. With the settings here there are few heaps,
and they serve all but the largest blocks from the beginning. `malloc_trim` returns memory that a burst has
left unused, even from the middle of a heap. With other C libraries (musl, macOS, Windows), which lack these
functions, nothing is set or trimmed.

In the measurement on two cores in docs/results/retrieval_server.md, memory stayed within 1.4 % during ten
minutes of overload; the share of these settings in this is not known.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

#: The functions of the C library, or None if it does not have them.
_library = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_library, "malloc_trim", None)
_set = getattr(_library, "mallopt", None)
#: The numbers of the settings in malloc.h.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_MAX_HEAP_BLOCK = 32 * 2**20  # bytes; the largest value that glibc accepts
_TRIM_FREE = 2**30  # free bytes at the end of a heap from which on glibc shrinks it; in effect never


def trim_heap() -> None:
    """Return the pages of freed memory to the system.

    Other Python threads keep running meanwhile, unless they allocate from the heap that is being trimmed.
    """
    if _trim is not None:
        _trim(0)


def limit_heaps(heaps: int | None = None) -> None:
    """Limit the number of heaps, and allocate blocks of up to 32 MB from them.

    The default is one heap for every four cores, since threads that share a heap wait for each other.
    Settings of the user in the environment (`MALLOC_...`, `GLIBC_TUNABLES`) are kept. Call this before other
    threads start.
    """
    is_set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if _set is not None and not is_set_by_user:
        _set(_ARENA_MAX, heaps or max(1, (os.cpu_count() or 1) // 4))
        _set(_MMAP_THRESHOLD, _MAX_HEAP_BLOCK)
        _set(_TRIM_THRESHOLD, _TRIM_FREE)


def trim_heap_regularly(interval_s: float = 60.0) -> threading.Event:
    """Call `trim_heap` every `interval_s` seconds in a separate thread, until the returned event is set.

    This is for processes that run until they are stopped: the server, and the replicas on Ray.
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(interval_s):
            trim_heap()

    threading.Thread(target=work, name="trim-heap", daemon=True).start()
    return stop
