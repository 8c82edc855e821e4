"""Looks for appended records in the background, so that a page shows them within two seconds."""

from __future__ import annotations

import logging
import threading
import time

from rag_r1.explorer.cache import BROKEN
from rag_r1.explorer.store import Store

logger = logging.getLogger(__name__)

#: Seconds between two looks; a look that takes long is followed by a pause of ten times its length.
_PAUSE_S, _MAX_PAUSE_S = 0.8, 30.0


class Watcher(threading.Thread):
    """Refreshes a store until `stop`."""

    def __init__(self, store: Store):
        super().__init__(name="explorer-watcher", daemon=True)
        self._store, self._stopped = store, threading.Event()
        self.problem: str | None = None  #: why the last look failed

    def run(self) -> None:
        """The thread's work."""
        while not self._stopped.is_set():
            begun, has_read = time.monotonic(), False
            generation = self._store.cache.generation
            try:
                has_read = self._store.refresh(self._stopped)
                self.problem = None
            except BROKEN as error:
                logger.warning("the cache of the explorer is broken and is read anew: %s", error)
                self._store.rebuild(generation)
            except Exception as error:  # the thread goes on: what is there can be looked at
                logger.error("the records cannot be read", exc_info=error)
                self.problem = f"the records cannot be read: {error}"
            took = 0.0 if has_read else time.monotonic() - begun
            self._stopped.wait(min(max(_PAUSE_S, 10 * took), _MAX_PAUSE_S))

    def stop(self) -> None:
        """End the thread after the batch that it writes, and wait for it."""
        self._stopped.set()
        self.join()
