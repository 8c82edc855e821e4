"""Keeps the C library from holding on to memory that nothing uses any more.

The encoder allocates and frees other sizes for every batch. glibc takes them from heaps that it grows and
hardly ever shrinks: a server under load kept growing by a few megabytes every other minute, long after its
largest batch. Two things are done about it:

- ``map_large_blocks``: a large block gets a mapping of its own, which goes back to the system when it is
  freed. glibc does so from 128 KiB on at first, but raises that size to the largest block that was freed, up
  to 32 MiB, and then every tensor of a batch comes from a heap;
- ``give_back_freed``, every few seconds: ``malloc_trim`` returns unused pages of the small blocks, also from
  the middle of a heap.

Other C libraries (musl, macOS, Windows) have no such functions, and nothing is done there.
"""

from __future__ import annotations

import ctypes
import sys
import threading

_library = ctypes.CDLL(None) if sys.platform == "linux" else None
#: The C library's functions, or None where it has none: only glibc has the first, and heeds the second.
_trim = getattr(_library, "malloc_trim", None)
_option = getattr(_library, "mallopt", None) if _trim is not None else None
_MAP_FROM = -3  # M_MMAP_THRESHOLD
#: Bytes from which a block is large. Each mapping costs time for fresh pages, so smaller ones are left to the
#: heaps.
LARGE = 2**20


def map_large_blocks() -> None:
    """Give each block of LARGE bytes or more a mapping of its own, from now on and for good."""
    if _option is not None:
        _option(_MAP_FROM, LARGE)


def give_back_freed() -> None:
    """Return the pages of freed memory to the system. Other Python threads run meanwhile."""
    if _trim is not None:
        _trim(0)


def keep_giving_back(every_s: float = 10.0) -> threading.Event:
    """Map large blocks, and call ``give_back_freed`` every ``every_s`` seconds until the event is set.

    That is done in a thread of its own. For processes that encode or search until they are stopped: the
    server, and the replicas on Ray.
    """
    map_large_blocks()
    done = threading.Event()

    def work() -> None:
        while not done.wait(every_s):
            give_back_freed()

    threading.Thread(target=work, name="give-back-memory", daemon=True).start()
    return done
