"""The client of the retrieval server, which answers the searches of rollouts.

One client serves all trajectories of a process over one pool of connections. New queries that arrive almost
together share a request. The trajectories of a GRPO group send similar queries, so equal ones share their
answer: one that is in flight for another trajectory is awaited, and one that was answered before comes from
an LRU cache, until the server reloads its index (cache.py).

Whatever goes wrong on the wire (refused connection, time-out, 5xx, 429, broken JSON, wrong shape) is retried
with exponential back-off and jitter. After the last retry the query gets a `Failure` and not an exception, so
a dead retriever costs each search one short error message, and not the run. Failures are not cached.
Redirects are errors, and nothing is decompressed.

With `agentic_input` a query is sent together with what the server's encoder was trained to read beside it,
such as the question, in the format that the server states (query_format.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from rag_r1.io.bounded_aiohttp import bounded_session, read_body
from rag_r1.io.bounded_http import is_web_page
from rag_r1.io.bounded_json import read_json
from rag_r1.io.errors import TooLargeError
from rag_r1.io.retry import RetryPolicy, is_transient, retry_after
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import WEB_PAGE
from rag_r1.protocols import CachedDocuments, Document, Failure
from rag_r1.protocols.actions import NO_ANSWER
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools.function_tool import SearchTool
from rag_r1.tools.retrieval.cache import QueryCache
from rag_r1.tools.retrieval.options import RetrieverConfig, token_header
from rag_r1.tools.retrieval.query_format import MAX_READY_BYTES, VERSION_HEADER, RemoteQueryFormat

logger = logging.getLogger(__name__)

#: Most bytes of a response.
MAX_RESPONSE_BYTES = 64 << 20
#: Most JSON values of a response: a base, and some for each document that was requested.
_BASE_VALUES, _VALUES_PER_DOCUMENT = 50_000, 200
#: Longest wait between two attempts.
_MAX_WAIT_S = 20.0

#: Errors of connections and of reading responses, after which a request is repeated.
_TRANSIENT = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, RecursionError)
#: The result of a query.
Result = list[Document] | Failure


class _Entry(NamedTuple):
    """A result from the cache, or the future of one that was requested."""

    result: Result | asyncio.Future[Result]
    #: Whether the request was made for an equal query.
    is_joined: bool = False


@dataclass
class ClientStats:
    """Counts since the client was created; queries = cached + joined + sent."""

    queries: int = 0
    #: Queries that were answered from the cache.
    cached: int = 0
    #: Queries that waited for an equal one in flight.
    joined: int = 0
    #: Queries that were sent, however often.
    sent: int = 0
    #: HTTP requests, including retries.
    requests: int = 0
    #: Turns whose queries were sent again.
    retried: int = 0
    #: Queries that got a Failure.
    failed: int = 0


def failure(detail: str) -> Failure:
    """Return the result of a query without an answer; `detail` is for people."""
    return Failure(NO_ANSWER, "retriever", detail[:200])


async def _wait_for(entry: _Entry) -> Result:
    """Return the result of an entry as soon as it is there. Documents that were requested for an equal query
    count as cached."""
    if not isinstance(entry.result, asyncio.Future):
        return entry.result
    result = await asyncio.shield(entry.result)
    return CachedDocuments(result) if entry.is_joined and isinstance(result, list) else result


def make_retrieval(options: Mapping[str, Any], key: str) -> RetrievalClient:
    """Return the tool `retrieval` of `rag_r1.tools`, for another server or index. Raises OptionsError."""
    return RetrievalClient(options_from(RetrieverConfig, options, key))


class RetrievalClient(SearchTool):
    """The search tool of a retrieval server; bound to the event loop in which it is first used."""

    def __init__(self, config: RetrieverConfig):
        self.config = config
        self.reads_context = config.agentic_input
        self.stats = ClientStats()
        self._cache = QueryCache(config.cache_size)
        self._in_flight: dict[str, asyncio.Future[Result]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        #: The turns that will share the next request, and the future that sends it at once when it is done.
        self._open_turns: list[list[str]] | None = None
        self._full: asyncio.Future[None]
        self._session: aiohttp.ClientSession | None = None
        self._retry = RetryPolicy(config.retries, config.backoff_s, _MAX_WAIT_S)
        self._format = RemoteQueryFormat(config.base, config.mode, self._get, self._retry)

    async def search(self, queries: Sequence[str]) -> list[Result]:
        """Search for the queries, sent unchanged; returns the documents of each, best first, or a Failure."""
        return await self.call([{"query": query} for query in queries])

    async def call(
        self, arguments: Sequence[Mapping[str, Any]], context: Context | None = None
    ) -> list[Result]:
        """Search for the queries of some calls; returns the documents of each, best first, or a Failure. With
        a context, the queries are sent as `agentic_input` says."""
        queries: Sequence[str] = [args["query"] for args in arguments]
        if context is not None and self.reads_context:
            try:
                queries = await self._format.texts(queries, context)
            except (ValueError, aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                logger.warning("no query format from %s (%s)", self.config.base, error)
                return [failure(str(error) or type(error).__name__)] * len(arguments)
        entries, new_queries = self._look_up(queries)
        if new_queries:
            self.stats.sent += len(new_queries)
            self._enqueue(new_queries)
        return [await _wait_for(entry) for entry in entries]

    def _look_up(self, queries: Sequence[str]) -> tuple[list[_Entry], list[str]]:
        """Return an entry for each query, and the queries to send."""
        entries: list[_Entry] = []
        new_queries: list[str] = []
        for query in queries:
            self.stats.queries += 1
            if (documents := self._cache.get(query)) is not None:
                self.stats.cached += 1
                entries.append(_Entry(CachedDocuments(documents)))
                continue
            if is_joined := query in self._in_flight:
                self.stats.joined += 1
            else:
                self._in_flight[query] = asyncio.get_running_loop().create_future()
                new_queries.append(query)
            entries.append(_Entry(self._in_flight[query], is_joined))
        return entries, new_queries

    async def close(self) -> None:
        """Cancel requests in flight and close the connections."""
        self._format.cancel()
        self._open_turns, queries = None, list(self._in_flight)
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        for query in queries:
            self._settle(query, failure("cancelled"))
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _enqueue(self, queries: list[str]) -> None:
        """Send the queries of a turn together with those that arrive within `gather_s` seconds, up to
        `max_queries`: an engine ends many turns in one step, and a request takes more CPU time than its
        queries. The queries of a turn stay together."""
        turns, limit = self._open_turns, self.config.max_queries
        if turns is not None and sum(map(len, turns)) + len(queries) > limit:
            self._full.set_result(None)
            turns = None
        if turns is None:
            turns, self._full = [], asyncio.get_running_loop().create_future()
            # A task of its own, so that the others get their answers if a trajectory is cancelled.
            request = asyncio.create_task(self._send(turns, full=self._full))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        turns.append(queries)
        if not self.config.gather_s or sum(map(len, turns)) >= limit:
            self._full.set_result(None)
            turns = None
        self._open_turns = turns

    async def _send(
        self, turns: list[list[str]], attempt: int = 0, full: asyncio.Future[None] | None = None
    ) -> None:
        """Request the queries of the turns, and deliver the answers to all searches that wait for them. Until
        `full` is done, or for `gather_s` seconds, more turns may join.

        After a failure each turn is retried in a request of its own, without the queries that have been
        answered. So a faulty turn costs those that shared its request at most one attempt, and a refused
        query affects only its own turn.
        """
        if full is not None and not full.done():
            await asyncio.wait([full], timeout=self.config.gather_s)
            if self._open_turns is turns:
                self._open_turns = None
        queries = [query for turn in turns for query in turn]
        reloads_when_sent, wait_s, is_refusal = self._cache.reloads, 0.0, False
        answers: Sequence[list[Document] | str]
        try:
            self.stats.requests += 1
            answers = await self._request(queries)
        except aiohttp.ClientResponseError as error:
            answers = [f"HTTP {error.status}"] * len(queries)
            # An error that is not transient means that the server would refuse the request again.
            is_refusal = not is_transient(error.status)
            wait_s = retry_after(error.headers)
        except Exception as error:
            answers = [self._describe(error)] * len(queries)
            if not isinstance(error, _TRANSIENT):  # a bug of this client, which a retry would not help
                logger.exception("search failed at %s", self.config.endpoint)
                attempt = self._retry.retries
        is_last = len(turns) == 1 if is_refusal else attempt >= self._retry.retries
        problems = self._deliver(dict(zip(queries, answers, strict=True)), reloads_when_sent, is_last)
        retried_turns = [part for turn in turns if (part := [query for query in turn if query in problems])]
        if is_last or not retried_turns:
            return
        if not is_refusal:
            attempt += 1
            self.stats.retried += len(retried_turns)
            await asyncio.sleep(self._retry.delay(attempt - 1, wait_s))
        await asyncio.gather(*(self._send([turn], attempt) for turn in retried_turns))

    def _deliver(
        self, answers: Mapping[str, list[Document] | str], reloads_when_sent: int, is_last: bool
    ) -> dict[str, str]:
        """Deliver documents and, after the last attempt, failures. Returns what is wrong, by query."""
        problems = {query: answer for query, answer in answers.items() if isinstance(answer, str)}
        for query, answer in answers.items():
            if query not in problems:
                self._settle(query, answer, reloads_when_sent)
            elif is_last:
                self._settle(query, failure(problems[query]))
        if problems and is_last:
            text = next(iter(problems.values()))[:200]
            logger.warning("search failed at %s (%s), %d queries", self.config.endpoint, text, len(problems))
        return problems

    def _settle(self, query: str, result: Result, reloads_when_sent: int = 0) -> None:
        """Deliver a result to all searches that wait for this query."""
        if isinstance(result, Failure):
            self.stats.failed += 1
        else:
            self._cache.keep(query, result, reloads_when_sent)
        future = self._in_flight.pop(query, None)
        if future is not None and not future.done():
            future.set_result(result)

    def _describe(self, error: Exception) -> str:
        """Return a description of an error for people."""
        if isinstance(error, asyncio.TimeoutError):
            return f"no answer within {self.config.timeout_s:g} s"
        return f"{type(error).__name__}: {error}"

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, which the first request opens. Raises what `token_header` raises."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self.config.max_connections)
            self._session = bounded_session(token_header(), self.config.timeout_s, connector=connector)
        return self._session

    async def _get(self, address: str) -> tuple[int, bytes]:
        """Return the status and the body of `/ready` (b"" if too large). Raises the errors of connections."""
        async with self._open_session().get(address, allow_redirects=False) as response:
            try:
                return response.status, await read_body(response, MAX_READY_BYTES)
            except TooLargeError:
                return response.status, b""  # read_format refuses it

    async def _request(self, queries: list[str]) -> list[list[Document] | str]:
        """Return the documents of each query, or what is wrong with them. Raises the errors of connections,
        and ValueError or RecursionError if the response has no results for these queries."""
        wire, reloads_when_sent = self.config.wire_format, self._cache.reloads
        payload = wire.payload(queries, self.config.topk)
        # A redirect would send the queries and the token to an address that nobody has configured.
        posted = self._open_session().post(self.config.endpoint, json=payload, allow_redirects=False)
        async with posted as response:
            if response.status != 200:
                raise aiohttp.ClientResponseError(
                    response.request_info, response.history, status=response.status, headers=response.headers
                )
            if is_web_page(response.headers):
                raise ValueError(WEB_PAGE)
            version = response.headers.get(VERSION_HEADER)
            self.index = " ".join(filter(None, (response.headers.get("X-Index"), version)))
            self._format.note_version(version)
            self._cache.note_version(version, reloads_when_sent)
            body = await read_body(response, MAX_RESPONSE_BYTES)
        max_values = _BASE_VALUES + _VALUES_PER_DOCUMENT * len(queries) * self.config.topk
        return wire.parse_each(read_json(body, max_values), len(queries), self.config.topk)
