"""What stands between a request and the engine: limits, readiness, the deadline, and clients that go away."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from retrieval_server.engine.batching import EngineOptions
from retrieval_server.engine.engine import Overloaded
from retrieval_server.engine.metrics import Metrics
from retrieval_server.engine.work import Answer
from retrieval_server.errors import RetrievalServerError
from retrieval_server.server.indexes import Loader, ServedIndex, Serving
from retrieval_server.server.logs import NOTE, Note
from retrieval_server.server.pages import PageStore
from retrieval_server.server.reload import OutsideRoot, Place, Reloader
from retrieval_server.server.wire import Limits
from retrieval_server.sources import SearchFailed

log = logging.getLogger(__name__)
Made = TypeVar("Made")
_SEARCH = re.compile(r"(?:/indexes/([^/]+))?/(?:retrieve|queries)")


class Refused(Exception):
    """A request that gets an error answer."""

    def __init__(self, status: int, error: str, reason: str, headers: dict[str, str] | None = None):
        self.status, self.error, self.reason, self.headers = status, error, reason, headers


class ClientGone(Exception):
    """The client closed its connection: there is nobody to answer."""


class Found(NamedTuple):
    """The answers to one request, and what gave them: an index of that name, in that version."""

    answers: list[Answer]
    index: str
    version: int


class RetrievalService:
    """Loads the indexes (and the pages, if there are any), and answers the queries of one request.

    The first of ``loaders`` is the index of requests that name none.
    """

    def __init__(
        self,
        loaders: Mapping[str, Loader],
        limits: Limits,
        topk: int,
        options: EngineOptions,
        pages: Path | None = None,
        reloader: Reloader | None = None,
        log_queries: bool = False,
    ):
        self.limits = limits
        self.topk = topk
        self.metrics = Metrics()
        self.failure: BaseException | None = None
        self._log_queries = log_queries
        self.indexes = {name: ServedIndex(name, options, self.metrics.of(name)) for name in loaders}
        self.default = next(iter(loaders))
        self._loaders = dict(loaders)
        self._reloader = reloader
        self._reloads: set[asyncio.Task] = set()
        self._pages_file = pages
        self._pages: PageStore | None = None
        self.deadline_s = options.deadline_s

    async def load(self) -> None:
        """Load everything and warm it; remembers the failure that it raises."""
        try:
            if self._pages_file is not None:
                self._pages = await asyncio.to_thread(PageStore, self._pages_file)
            for name, load in self._loaders.items():
                await self.indexes[name].load(load)
        except BaseException as error:
            self.failure = error
            raise

    async def stop(self) -> None:
        for task in list(self._reloads):
            task.cancel()
        await asyncio.gather(*self._reloads, return_exceptions=True)
        for index in self.indexes.values():
            await index.stop()

    def require_ready(self, name: str | None = None) -> tuple[ServedIndex, Serving]:
        """The index of that name (None: the default) and what it serves now. Raises Refused."""
        index = self.indexes.get(self.default if name is None else name)
        if index is None:
            known = ", ".join(self.indexes)
            raise self.refused(404, "unknown_index", f"index: no such index; this server has: {known}")
        if self.failure is not None:
            reason = "the index could not be loaded; see the server's log"
            raise self.refused(503, "not_ready", reason, index=index)
        if index.serving is None:
            reason = "the index is still loading"
            raise self.refused(503, "not_ready", reason, index=index, retry_after=1)
        return index, index.serving

    def require_pages(self) -> PageStore:
        """The pages of ``/access``. Raises Refused where the server has none, or not yet."""
        if self._pages_file is None:
            raise self.refused(404, "no_pages", "this server has no pages; it is started with --pages FILE")
        if self._pages is None:
            raise self.refused(503, "not_ready", "the pages are still being read", retry_after=1)
        return self._pages

    async def search(
        self, request: Request, queries: Sequence[str], topk: int | None, name: str | None = None
    ) -> Found:
        """Documents for each query. Raises Refused, or ClientGone with the work taken back."""
        note: Note | None = request.scope.get(NOTE)
        if note is not None:
            note.queries = len(queries)
            note.texts = tuple(queries) if self._log_queries else ()
        index, serving = self.require_ready(name)
        if note is not None:
            note.index = index.name
        wanted = self._check(queries, topk, index)
        try:
            searching = serving.engine.search(queries, wanted)
            return Found(await self.while_wanted(request, searching, index), index.name, serving.version)
        except Overloaded as error:
            raise self._overloaded(index, error) from None
        except SearchFailed as error:
            raise self.refused(
                error.status, error.error, error.reason, index=index, retry_after=error.retry_after
            ) from None

    async def while_wanted(
        self, request: Request, work: Awaitable[Made], index: ServedIndex | None = None
    ) -> Made:
        """What ``work`` gives. It is cancelled if its client goes away first (ClientGone) or the deadline
        passes (Refused)."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {working, leaving}, timeout=self.deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                return working.result()
            if leaving.done():
                raise ClientGone
            reason = f"no answer within the server's deadline of {self.deadline_s:g} s"
            raise self.refused(504, "deadline", reason, index=index)
        finally:
            working.cancel()
            leaving.cancel()

    async def reload(self, name: str | None, path: str | None, encoder: str | None) -> tuple[str, Serving]:
        """Exchange an index (None: the default) for the one at ``path``; returns its name and what it serves.

        Raises Refused; the index then serves what it served before. A caller that goes away does not stop it.
        """
        index, _ = self.require_ready(name)
        if self._reloader is None or index.name not in self._reloader.places:
            raise self.refused(404, "no_reload", f"this server cannot reload {index.name}", index=index)
        if index.reloading:
            raise self.refused(409, "reloading", f"a reload of {index.name} is under way", index=index)
        try:
            place = self._reloader.resolve(index.name, path, encoder)
        except OutsideRoot as error:
            raise self.refused(403, "forbidden", str(error), index=index) from None
        index.reloading = True
        task = asyncio.create_task(self._exchange(self._reloader, index, place))
        self._reloads.add(task)
        task.add_done_callback(self._forget)
        try:
            return index.name, await asyncio.shield(task)
        except RetrievalServerError as error:
            raise self.refused(
                422, "reload_failed", f"{error} The old index goes on serving.", index=index
            ) from None
        except OSError as error:
            reason = f"a file of it cannot be read ({error.strerror}). The old index goes on serving."
            raise self.refused(422, "reload_failed", reason, index=index) from None

    async def _exchange(self, reloader: Reloader, index: ServedIndex, place: Place) -> Serving:
        try:
            serving = await index.load(reloader.loader(place))
        except Exception as error:
            index.metrics.reloaded("failed")
            expected = isinstance(error, RetrievalServerError)
            log.error("reload of %s failed: %s", index.name, error, exc_info=None if expected else error)
            raise
        else:
            index.metrics.reloaded("done")
            reloader.places[index.name] = place
            log.info("index %s is now version %d", index.name, serving.version)
            return serving
        finally:
            index.reloading = False

    def refusal(self, path: str) -> Callable[[], Refused] | None:
        """What refuses a search at this path, whatever its body says; None if that matters, or none would be.

        Call it if the request is refused: that counts.
        """
        found = _SEARCH.fullmatch(path)
        if found is None or (found[1] is None and len(self.indexes) > 1):
            return None  # no search, or its body may name another index
        index = self.indexes.get(found[1] or self.default)
        overload = index.serving.engine.refuses() if index and index.serving else None
        return partial(self._overloaded, index, overload) if index and overload else None

    def _overloaded(self, index: ServedIndex, error: Overloaded) -> Refused:
        return self.refused(
            503, "overloaded", str(error), index=index, metric=error.reason, retry_after=error.retry_after
        )

    def _forget(self, reload: asyncio.Task) -> None:
        self._reloads.discard(reload)
        if not reload.cancelled():
            reload.exception()  # mark as seen: it was logged, and its caller may have gone

    def refused(
        self,
        status: int,
        error: str,
        reason: str,
        *,
        index: ServedIndex | None = None,
        metric: str | None = None,
        retry_after: int | None = None,
    ) -> Refused:
        """A refusal to raise or to send, counted in the metrics."""
        self.metrics.rejections.labels(index.name if index else "", metric or error).inc()
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        return Refused(status, error, reason, headers)

    def _check(self, queries: Sequence[str], topk: int | None, index: ServedIndex) -> int:
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
            raise self.refused(413, "too_large", reason, index=index)
        return self.topk if topk is None else topk


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed the connection (the body was read before)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
