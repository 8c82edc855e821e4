"""Settings of the C library's allocator for a process that encodes.

The encoder allocates and frees other sizes for every batch. By default glibc serves each thread from heaps of
64 MB, and large blocks from mappings of their own until one of their size has been freed; from then on they
come from the heaps, too, which are cut up more and more. Here there are few heaps, and all but the largest
blocks are taken from them from the beginning: ten minutes of overload leave memory within 1.4 %.
`malloc_trim` returns what a burst has left unused, also from the middle of a heap. Other C libraries (musl,
macOS, Windows) have no such functions, and nothing is done there.

What was measured, on two cores: docs/results/retrieval_server.md.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

#: The C library's functions, or None where it has none.
_library = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim = getattr(_library, "malloc_trim", None)
_set = getattr(_library, "mallopt", None)
#: Numbers of the settings, from malloc.h; their values.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_MAX_HEAP_BLOCK = 32 * 2**20  # bytes; glibc takes no more
_TRIM_FREE = 2**30  # free bytes at the end of a heap from which on it shrinks by itself: never, in effect


def trim_heap() -> None:
    """Return the pages of freed memory to the system. Other Python threads run meanwhile."""
    if _trim is not None:
        _trim(0)


def limit_heaps(heaps: int | None = None) -> None:
    """Serve all threads from `heaps` heaps, and blocks of up to 32 MB from them.

    None: one for every four cores, since threads of the same heap wait for each other. What the user has set
    in the environment (`MALLOC_...`, `GLIBC_TUNABLES`) is kept. Call it before other threads start.
    """
    is_set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if _set is not None and not is_set_by_user:
        _set(_ARENA_MAX, heaps or max(1, (os.cpu_count() or 1) // 4))
        _set(_MMAP_THRESHOLD, _MAX_HEAP_BLOCK)
        _set(_TRIM_THRESHOLD, _TRIM_FREE)


def trim_heap_regularly(interval_s: float = 60.0) -> threading.Event:
    """Call `trim_heap` every `interval_s` seconds, in a thread of its own, until the event is set.

    For processes that encode or search until they are stopped: the server, and the replicas on Ray.
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(interval_s):
            trim_heap()

    threading.Thread(target=work, name="trim-heap", daemon=True).start()
    return stop
