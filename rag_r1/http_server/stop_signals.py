"""Leaves the signals that stop a server to uvicorn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT outside of uvicorn, which must run in the block.

    While it serves, uvicorn handles these signals itself: it shuts down in an orderly way, and then raises
    the signal once more for the handlers that were set before. Has no effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
