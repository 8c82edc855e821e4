"""Holds the indexes of a server by name, and replaces them while they are served.

A new index is loaded and warmed up in separate threads while the old one answers. Then a single assignment in
the event loop switches to it: searches that began before end with the old index, later ones use the new one,
and no search uses both. The old engine, with its cache, is stopped when its last search has been answered. If
the new index does not load, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retrieval_server.determinism import Determinism
from retrieval_server.engine.engine import Engine
from retrieval_server.engine.metrics import IndexMetrics, Metrics
from retrieval_server.engine.options import EngineOptions
from retrieval_server.server.request_errors import RequestErrors
from retrieval_server.source import Source

log = logging.getLogger(__name__)
#: Opens an index or another source; called in a worker thread.
Loader = Callable[[], Source]


class LoadProgress:
    """Prints each step of loading and keeps the current one for `/ready`. May be called in any thread."""

    #: The step under way; empty before the first one.
    step = ""

    def __call__(self, step: str) -> None:
        self.step = step
        print(f"loading {step}", flush=True)


@dataclass(frozen=True)
class LoadedIndex:
    """A loaded index that answers searches."""

    engine: Engine
    #: 1 at the start of the server, and one more after each reload.
    version: int

    @property
    def source(self) -> Source:
        """The source that the engine searches."""
        return self.engine.source


class ServedIndex:
    """The index that is served under one name. Belongs to one event loop."""

    def __init__(self, name: str, options: EngineOptions, metrics: IndexMetrics):
        self.name = name
        self.metrics = metrics
        #: None until the index is loaded.
        self.serving: LoadedIndex | None = None
        #: Whether a reload is under way; `ReloadService` sets it.
        self.reloading = False
        self._options = options
        self._engines: set[Engine] = set()  # serving or draining
        self._retiring: set[asyncio.Task] = set()
        metrics.watch("queue_length", lambda: sum(engine.queue_length for engine in list(self._engines)))
        metrics.watch("outstanding", lambda: sum(engine.outstanding for engine in list(self._engines)))
        metrics.watch("cache_entries", lambda: self.serving.engine.cache_entries if self.serving else 0)
        metrics.watch("index_version", lambda: self.serving.version if self.serving else 0)

    @property
    def guarantee(self) -> Determinism | None:
        """What the index guarantees under load; None before it is loaded, and for web engines."""
        return self.serving.source.description.guarantee if self.serving else None

    async def load(self, loader: Loader) -> LoadedIndex:
        """Load an index and switch to it. Errors of `loader` are passed on and leave everything unchanged."""
        engine = await Engine.start(loader, self._options, self.metrics)
        self._engines.add(engine)
        old = self.serving
        self.serving = LoadedIndex(engine, old.version + 1 if old else 1)
        if self.guarantee is not None:
            log.info("index %s guarantees %s: %s", self.name, self.guarantee, self.guarantee.meaning)
        if old is not None:
            task = asyncio.create_task(self._retire(old.engine))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return self.serving

    async def stop(self) -> None:
        """Stop all engines. Call it when all requests have been answered."""
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        for engine in list(self._engines):
            await self._end(engine)

    async def _retire(self, engine: Engine) -> None:
        """Stop a replaced engine when its last search has been answered."""
        await engine.drain()
        await self._end(engine)

    async def _end(self, engine: Engine) -> None:
        """Stop an engine. An error is only logged, so that the other engines are stopped nevertheless."""
        try:
            await engine.stop()
        except Exception:
            log.exception("an engine of the index %s could not be stopped", self.name)
        self._engines.discard(engine)


class Indexes:
    """All indexes of a server. The first of `loaders` is the default, for requests that name no index."""

    def __init__(
        self,
        loaders: Mapping[str, Loader],
        options: EngineOptions,
        metrics: Metrics,
        request_errors: RequestErrors,
        progress: LoadProgress,
    ):
        self.by_name = {name: ServedIndex(name, options, metrics.of(name)) for name in loaders}
        self.default = next(iter(loaders))
        #: The error with which loading failed; from then on every search is refused. `Services.load` sets it,
        #: since the pages may fail, too.
        self.failure: BaseException | None = None
        #: Name of the index whose loading failed; None if that of the pages did.
        self.failed_name: str | None = None
        self.progress = progress
        self._loaders = dict(loaders)
        self._request_errors = request_errors

    @property
    def guarantees(self) -> dict[str, Determinism]:
        """The guarantee of each loaded index, by name. Web engines have none."""
        served = self.by_name.items()
        return {name: index.guarantee for name, index in served if index.guarantee is not None}

    async def load(self) -> None:
        """Load and warm up the indexes, one after the other. Passes on errors of the loaders."""
        for name, loader in self._loaders.items():
            try:
                await self.by_name[name].load(loader)
            except BaseException:
                self.failed_name = name
                raise

    async def stop(self) -> None:
        """Stop all engines. Call it when all requests have been answered."""
        for index in self.by_name.values():
            await index.stop()

    def require(self, name: str | None = None) -> tuple[ServedIndex, LoadedIndex]:
        """Return the index of this name (None: the default) and what it serves now.

        Raises RequestError if there is no such index or it is not loaded.
        """
        index = self.by_name.get(self.default if name is None else name)
        counted = self._request_errors.counted
        if index is None:
            names = ", ".join(self.by_name)
            raise counted(404, "unknown_index", f"index: no such index; this server has: {names}")
        if self.failure is not None:
            reason = "the index could not be loaded; see the server's log"
            raise counted(503, "not_ready", reason, index=index.name)
        if index.serving is None:
            step = self.progress.step
            reason = f"the index is still loading{step and f', now {step}'}; try again"
            raise counted(503, "not_ready", reason, index=index.name, retry_after=1)
        return index, index.serving
