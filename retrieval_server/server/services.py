"""Creates, loads and stops the services that the routes of one server call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from retrieval_server.engine.metrics import Metrics
from retrieval_server.engine.options import EngineOptions
from retrieval_server.server.indexes import Indexes, Loader, LoadProgress
from retrieval_server.server.limits import RequestLimits
from retrieval_server.server.pages import ServedPages
from retrieval_server.server.reload import Reloader, ReloadService
from retrieval_server.server.request_errors import RequestErrors
from retrieval_server.server.search_service import SearchService


class ServiceSettings(TypedDict, total=False):
    """The settings that `Services.make` explains."""

    limits: RequestLimits
    topk: int
    options: EngineOptions
    pages: Path | None
    reloader: Reloader | None
    log_queries: bool
    progress: LoadProgress | None


@dataclass(frozen=True)
class Services:
    """The services of a server, and the options and metrics that they share."""

    options: EngineOptions
    metrics: Metrics
    request_errors: RequestErrors
    indexes: Indexes
    pages: ServedPages
    search: SearchService
    reload: ReloadService

    @classmethod
    def make(
        cls,
        loaders: Mapping[str, Loader],
        *,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 (frozen)
        topk: int = 3,
        options: EngineOptions = EngineOptions(),  # noqa: B008 (frozen)
        pages: Path | None = None,
        reloader: Reloader | None = None,
        log_queries: bool = False,
        progress: LoadProgress | None = None,
    ) -> Services:
        """Create the services without loading anything.

        The first of `loaders` is the default index, and `topk` the default number of documents per query.
        `pages` is the file of `/access`. Without a `reloader` every `/reload` is refused. `log_queries` adds
        the text of the queries to the log. The loaders call `progress` before each step.
        """
        metrics = Metrics()
        request_errors = RequestErrors(metrics)
        indexes = Indexes(loaders, options, metrics, request_errors, progress or LoadProgress())
        search = SearchService(
            indexes,
            request_errors,
            limits=limits,
            topk=topk,
            deadline_s=options.deadline_s,
            log_queries=log_queries,
        )
        return cls(
            options=options,
            metrics=metrics,
            request_errors=request_errors,
            indexes=indexes,
            pages=ServedPages(pages, request_errors),
            search=search,
            reload=ReloadService(indexes, reloader, request_errors),
        )

    async def load(self) -> None:
        """Load and warm up everything. Errors of the loaders are passed on; every search is then refused."""
        try:
            if self.pages.path is not None:
                self.indexes.progress(f"the pages {self.pages.path}")
            await self.pages.load()
            await self.indexes.load()
        except BaseException as error:
            self.indexes.failure = error
            raise

    async def stop(self) -> None:
        """Stop the reloads and the engines."""
        await self.reload.stop()
        await self.indexes.stop()
