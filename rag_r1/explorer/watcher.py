"""Reads appended records in the background, so that a page shows them soon.

Usually this takes one or two seconds. Where looking for new records is slow, as on some network file systems,
it takes up to half a minute.
"""

from __future__ import annotations

import logging
import threading
import time

import duckdb

from rag_r1.explorer.cache import is_broken
from rag_r1.explorer.store import Store

logger = logging.getLogger(__name__)

#: Bounds of the pause between two refreshes, in seconds. After a refresh that has found no change or has
#: failed, the pause is ten times as long as the refresh, so that a slow file system is not kept busy.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.8, 30.0


class Watcher(threading.Thread):
    """Refreshes a store until `stop` is called."""

    def __init__(self, store: Store):
        super().__init__(name="explorer-watcher", daemon=True)
        self._store = store
        self._stopped = threading.Event()
        #: Why the last refresh, or the replacement of a broken cache, failed; None if it did not.
        self.problem: str | None = None
        #: Whether the cache was replaced, and no refresh has succeeded since then.
        self._was_replaced = False

    def run(self) -> None:
        """Refresh the store and pause, until `stop` is called."""
        while not self._stopped.is_set():
            started = time.monotonic()
            has_changed = False
            try:
                has_changed = self._refresh()
                self.problem = None
            except Exception as error:  # continue, because the records that have been read can still be shown
                logger.error("the records cannot be read", exc_info=error)
                self.problem = f"the records cannot be read: {error}"
            seconds = 0.0 if has_changed else time.monotonic() - started
            self._stopped.wait(min(max(_MIN_PAUSE_S, 10 * seconds), _MAX_PAUSE_S))

    def _refresh(self) -> bool:
        """Read what has changed, and return whether anything has.

        A broken cache is replaced by an empty one, which the next call fills. If the new cache breaks before
        a refresh has succeeded, as on a full disk, it is replaced again and its error is raised, so that
        `run` reports the error and pauses for longer. All other errors are raised, too, and so are those of
        replacing the cache.
        """
        generation = self._store.cache.generation
        try:
            has_changed = self._store.refresh(self._stopped)
        except duckdb.Error as error:
            # ConnectionException: the cache is closed, since an earlier replacement of it has failed.
            if not (is_broken(error) or isinstance(error, duckdb.ConnectionException)):
                raise
            logger.warning("the cache of the explorer is broken and is read anew: %s", error)
            self._store.rebuild(generation)
            if self._was_replaced:
                raise
            has_changed = self._was_replaced = True
        else:
            self._was_replaced = False
        return has_changed

    def stop(self) -> None:
        """End the thread after its present batch, and wait for it."""
        self._stopped.set()
        self.join()
