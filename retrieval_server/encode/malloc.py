"""Memory that the C library keeps though nothing uses it any more goes back to the system.

Each batch has its own shape, and with it the sizes of what the encoder allocates and frees. glibc serves them
from heaps that it grows and hardly ever shrinks: a server under load went on growing by a few megabytes
every other minute, long after its largest batch. ``malloc_trim`` gives unused pages back, also from the
middle of a heap. Elsewhere (musl, macOS, Windows) there is no such function and nothing is done.
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
    """``give_back_freed`` every ``every_s`` seconds, from a thread of its own, until the event is set.

    For a process that encodes or searches until it is stopped: the server, a replica of one of its stages.
    """
    done = threading.Event()

    def work() -> None:
        while not done.wait(every_s):
            give_back_freed()

    threading.Thread(target=work, name="give-back-memory", daemon=True).start()
    return done
