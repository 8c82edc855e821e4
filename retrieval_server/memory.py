"""Memory that the C library keeps though nothing uses it any more goes back to the system.

Each batch has its own shape, and with it the sizes of what the encoder allocates and frees. glibc serves them
from heaps that it grows and hardly ever shrinks: a server under load went on growing by a few megabytes
every other minute, long after its largest batch. ``malloc_trim`` gives unused pages back, also from the
middle of a heap. Elsewhere (musl, macOS, Windows) there is no such function and nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys

#: Seconds between two times. What is given back and needed again costs a page fault for each 4 kB: some ten
#: milliseconds of processor each time.
_EVERY_S = 10.0


def give_back_freed() -> None:
    """Return the pages of freed memory to the system. Other Python threads run meanwhile."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # None: the C library is not glibc
        if trim is not None:
            trim(0)


async def keep_giving_back() -> None:
    """``give_back_freed`` from a thread of its own, for as long as the server runs."""
    while True:
        await asyncio.sleep(_EVERY_S)
        await asyncio.to_thread(give_back_freed)
