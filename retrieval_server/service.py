"""What stands between a request and the engine: limits, readiness, the deadline, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.requests import Request

from retrieval_server.batching import EngineOptions
from retrieval_server.engine import Answer, Engine, Overloaded
from retrieval_server.metrics import Metrics
from retrieval_server.pages import PageStore
from retrieval_server.sources import SearchFailed, Source
from retrieval_server.wire import Limits


class Refused(Exception):
    """A request that gets an error answer."""

    def __init__(self, status: int, error: str, reason: str, headers: dict[str, str] | None = None):
        self.status, self.error, self.reason, self.headers = status, error, reason, headers


class ClientGone(Exception):
    """The client closed its connection: there is nobody to answer."""


class RetrievalService:
    """Loads the source (and the pages, if there are any), and answers the queries of one request."""

    def __init__(
        self,
        load: Callable[[], Source],
        limits: Limits,
        topk: int,
        options: EngineOptions,
        pages: Path | None = None,
    ):
        self.limits = limits
        self.topk = topk
        self.metrics = Metrics()
        self.failure: BaseException | None = None
        self._load = load
        self._pages_file = pages
        self._pages: PageStore | None = None
        self._deadline_s = options.deadline_s
        self._engine = Engine(options, self.metrics)

    async def load(self) -> None:
        """Load the source and warm it; remembers the failure that it raises."""
        try:
            if self._pages_file is not None:
                self._pages = await asyncio.to_thread(PageStore, self._pages_file)
            await self._engine.load(self._load)
        except BaseException as error:
            self.failure = error
            raise

    async def stop(self) -> None:
        await self._engine.stop()

    def require_ready(self) -> Source:
        if self.failure is not None:
            raise self._refused(503, "not_ready", "the index could not be loaded; see the server's log")
        if self._engine.source is None:
            raise self._refused(503, "not_ready", "the index is still loading", retry_after=1)
        return self._engine.source

    def require_pages(self) -> PageStore:
        """The pages of ``/access``. Raises Refused where the server has none, or not yet."""
        if self._pages_file is None:
            raise self._refused(404, "no_pages", "this server has no pages; it is started with --pages FILE")
        self.require_ready()
        assert self._pages is not None
        return self._pages

    async def search(self, request: Request, queries: Sequence[str], topk: int | None) -> list[Answer]:
        """Documents for each query. Raises Refused, or ClientGone with the work taken back."""
        self.require_ready()
        wanted = self._check(queries, topk)
        searching = asyncio.ensure_future(self._engine.search(queries, wanted))
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {searching, leaving}, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if searching.done():
                return searching.result()
            if leaving.done():
                raise ClientGone
            reason = f"no answer within the server's deadline of {self._deadline_s:g} s"
            raise self._refused(504, "deadline", reason)
        except Overloaded as error:
            raise self._refused(
                503, "overloaded", str(error), metric=error.reason, retry_after=error.retry_after
            ) from None
        except SearchFailed as error:
            raise self._refused(
                error.status, error.error, error.reason, retry_after=error.retry_after
            ) from None
        finally:
            searching.cancel()
            leaving.cancel()

    def _refused(
        self,
        status: int,
        error: str,
        reason: str,
        *,
        metric: str | None = None,
        retry_after: int | None = None,
    ) -> Refused:
        self.metrics.rejections.labels(metric or error).inc()
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        return Refused(status, error, reason, headers)

    def _check(self, queries: Sequence[str], topk: int | None) -> int:
        """The topk to use. Raises 413 for a request beyond the limits."""
        limits = self.limits
        reason = None
        if len(queries) > limits.max_queries:
            reason = f"{len(queries)} queries; at most {limits.max_queries} in one request"
        elif topk is not None and topk > limits.max_topk:
            reason = f"topk is {topk}; at most {limits.max_topk}"
        else:
            for position, query in enumerate(queries):
                if len(query) > limits.max_query_chars:
                    most = limits.max_query_chars
                    reason = f"queries[{position}] has {len(query)} characters; at most {most}"
                    break
        if reason is not None:
            raise self._refused(413, "too_large", reason)
        return self.topk if topk is None else topk


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed the connection (the body was read before)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
