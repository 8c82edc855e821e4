"""Reads appended records in the background, so that a page shows them within two seconds."""

from __future__ import annotations

import logging
import threading
import time

from rag_r1.explorer.cache import BROKEN
from rag_r1.explorer.store import Store

logger = logging.getLogger(__name__)

#: Bounds of the pause between two refreshes, in seconds. After a refresh that has found nothing, the pause is
#: ten times as long as the refresh, so that a slow file system is not kept busy.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.8, 30.0


class Watcher(threading.Thread):
    """Refreshes a store until `stop` is called."""

    def __init__(self, store: Store):
        super().__init__(name="explorer-watcher", daemon=True)
        self._store = store
        self._stopped = threading.Event()
        #: Why the last refresh failed; None if it did not.
        self.problem: str | None = None

    def run(self) -> None:
        """Refresh the store and pause, until `stop` is called."""
        while not self._stopped.is_set():
            started = time.monotonic()
            has_read = False
            generation = self._store.cache.generation
            try:
                has_read = self._store.refresh(self._stopped)
                self.problem = None
            except BROKEN as error:
                logger.warning("the cache of the explorer is broken and is read anew: %s", error)
                self._store.rebuild(generation)
            except Exception as error:  # continue, because the records that have been read can still be shown
                logger.error("the records cannot be read", exc_info=error)
                self.problem = f"the records cannot be read: {error}"
            seconds = 0.0 if has_read else time.monotonic() - started
            self._stopped.wait(min(max(_MIN_PAUSE_S, 10 * seconds), _MAX_PAUSE_S))

    def stop(self) -> None:
        """End the thread after its present batch, and wait for it."""
        self._stopped.set()
        self.join()
