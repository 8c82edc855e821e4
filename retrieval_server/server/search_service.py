"""The search service between the routes and the engines: limits, deadlines and disconnected clients.

The routes call `SearchService` with the queries or ids of one request. It checks the limits, passes the work
to the engine of the requested index, and ends it when the client disconnects or the deadline passes. Every
refusal, and every failure that a source announces (SearchFailedError), becomes a RequestError that is counted
in the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from starlette.requests import Request

from retrieval_server.engine.jobs import Answer
from retrieval_server.errors import ClientDisconnectedError, OverloadedError, RequestError, SearchFailedError
from retrieval_server.folder.passages import Passage
from retrieval_server.server.indexes import Indexes
from retrieval_server.server.limits import RequestLimits
from retrieval_server.server.request_errors import RequestErrors
from retrieval_server.server.request_log import NOTE, RequestNote

Result = TypeVar("Result")


class IndexResult(NamedTuple, Generic[Result]):
    """The answer of an index to one request."""

    #: One item for each query or id of the request.
    items: list[Result]
    #: The name of the index that answered.
    index: str
    #: Its version (LoadedIndex).
    version: int


class SearchService:
    """Answers requests for searches and for documents. `topk` applies to requests that name none."""

    def __init__(
        self,
        indexes: Indexes,
        request_errors: RequestErrors,
        *,
        limits: RequestLimits,
        topk: int,
        deadline_s: float,
        log_queries: bool = False,
    ):
        self.limits = limits
        self.topk = topk
        self._indexes, self._request_errors = indexes, request_errors
        self._deadline_s = deadline_s
        self._log_queries = log_queries
        # Looking up ids reads the whole column of ids. One thread does so for all requests, since a look-up
        # goes on when its client has disconnected.
        self._look_ups = ThreadPoolExecutor(1, thread_name_prefix="look-up")

    async def search(
        self, request: Request, queries: Sequence[str], topk: int | None, name: str | None = None
    ) -> IndexResult[Answer]:
        """Return the documents for each query.

        Raises RequestError if the request is refused or fails, and ClientDisconnectedError if its client
        disconnects first.
        """
        note: RequestNote | None = request.scope.get(NOTE)
        if note is not None:
            note.queries = len(queries)
            note.texts = tuple(queries) if self._log_queries else ()
        index, serving = self._indexes.require(name)
        if note is not None:
            note.index = index.name
        if (reason := self._exceeded_limit(queries, topk)) is not None:
            raise self._request_errors.counted(413, "too_large", reason, index=index.name)
        try:
            searching = serving.engine.search(queries, self.topk if topk is None else topk)
            answers = await self.until_disconnected(request, searching, index.name)
            return IndexResult(answers, index.name, serving.version)
        except OverloadedError as error:
            raise self.refuse_overload(index.name, error) from None
        except SearchFailedError as error:
            raise self._failure(index.name, error) from None

    async def documents(
        self, request: Request, ids: Sequence[str], name: str | None = None
    ) -> IndexResult[Passage | None]:
        """Return the documents with these ids, None for an unknown id. Raises errors as `search` does."""
        index, serving = self._indexes.require(name)
        loop = asyncio.get_running_loop()
        looking_up = loop.run_in_executor(self._look_ups, serving.source.documents, ids)
        try:
            passages = await self.until_disconnected(request, looking_up, index.name)
        except SearchFailedError as error:
            raise self._failure(index.name, error) from None
        return IndexResult(passages, index.name, serving.version)

    async def until_disconnected(
        self, request: Request, work: Awaitable[Result], index: str | None = None
    ) -> Result:
        """Return the result of `work`, or raise its error.

        The work is cancelled if the client disconnects first (ClientDisconnectedError) or the deadline passes
        (RequestError). In a thread, work that has begun goes on nevertheless.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {working, leaving}, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if working.done():
                return working.result()
            if leaving.done():
                raise ClientDisconnectedError
            reason = f"no answer within the server's deadline of {self._deadline_s:g} s"
            raise self._request_errors.counted(504, "deadline", reason, index=index)
        finally:
            working.cancel()
            leaving.cancel()

    def overload(self, name: str | None) -> OverloadedError | None:
        """Return the error with which an index (None: the default) would refuse one more query, or None."""
        index = self._indexes.by_name.get(name or self._indexes.default)
        return index.serving.engine.refusal() if index and index.serving else None

    def refuse_overload(self, name: str | None, error: OverloadedError) -> RequestError:
        """Count and return the error for a request that the engine of an index (None: default) refuses."""
        index = name or self._indexes.default
        return self._request_errors.counted(
            503, "overloaded", str(error), index=index, rejection=error.reason, retry_after=error.retry_after
        )

    def _failure(self, index: str, error: SearchFailedError) -> RequestError:
        """Count and return the error for a request for which the source failed."""
        return self._request_errors.counted(
            error.status, error.error, error.reason, index=index, retry_after=error.retry_after
        )

    def _exceeded_limit(self, queries: Sequence[str], topk: int | None) -> str | None:
        """Return the sentence for the limit that a request exceeds, or None."""
        limits = self.limits
        if len(queries) > limits.max_queries:
            limit = limits.max_queries
            return f"{len(queries)} queries; at most {limit} in one request: send several requests"
        if topk is not None and topk > limits.max_topk:
            return f"topk is {topk}; at most {limits.max_topk}, the server's --max-topk"
        for position, query in enumerate(queries):
            if len(query) > limits.max_query_chars:
                limit = limits.max_query_chars
                return f"queries[{position}] has {len(query)} characters; at most {limit}: shorten it"
        return None


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed the connection. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
