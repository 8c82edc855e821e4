"""Returns memory to the system that the C library keeps although nothing uses it any more.

The encoder allocates and frees other sizes for every batch. glibc takes them from heaps that it grows and
hardly ever shrinks: a server under load kept growing by a few megabytes every other minute, long after its
largest batch. ``malloc_trim`` returns unused pages, also from the middle of a heap. Other C libraries (musl,
macOS, Windows) have no such function, and nothing is done there.
"""

from __future__ import annotations

import ctypes
import sys
import threading

#: The C library's function, or None where it has none.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back_freed() -> None:
    """Return the pages of freed memory to the system. Other Python threads run meanwhile."""
    if _trim is not None:
        _trim(0)


def keep_giving_back(every_s: float = 10.0) -> threading.Event:
    """Call ``give_back_freed`` every ``every_s`` seconds, in a thread of its own, until the event is set.

    For processes that encode or search until they are stopped: the server, and the replicas on Ray.
    """
    done = threading.Event()

    def work() -> None:
        while not done.wait(every_s):
            give_back_freed()

    threading.Thread(target=work, name="give-back-memory", daemon=True).start()
    return done
