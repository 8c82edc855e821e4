"""The client of the retrieval server, which answers the searches of rollouts.

One client serves all trajectories of a process over one pool of connections. New queries that arrive almost
together are sent together (batching.py). A query that is already in flight for another trajectory is awaited,
not sent again (single flight), and one that was answered before comes from an LRU cache, until the server has
reloaded its index (cache.py). The trajectories of a GRPO group send the same queries, so both matter.
Whatever can go wrong on the wire (refused connection, time-out, 5xx, 429, broken JSON, wrong shape) is
retried with exponential back-off and jitter; after the last retry the query gets a `Failure`, never an
exception, so a dead retriever costs one bounded error observation and not the run. Failures are not cached.
Redirects are errors; nothing is decompressed.

With `agentic_input` the server is sent more than the query: what its encoder was trained on, e.g. the
question beside it (rag_r1/protocols/retriever_query.py). Separator and mode are the server's own
(query_format.py).

The token for a server that requires one is read from the environment variable `RETRIEVAL_TOKEN`; it is not a
key of the configuration, because configurations are logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from rag_r1.io.bounded_aiohttp import BodyTooLargeError, bounded_session, read_body
from rag_r1.io.bounded_json import read_json
from rag_r1.io.retry import RetryPolicy, is_transient, retry_after
from rag_r1.options.declare import options_from
from rag_r1.protocols import Document, Failure
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools.retrieval.batching import QueryBatcher
from rag_r1.tools.retrieval.cache import QueryCache
from rag_r1.tools.retrieval.options import RetrieverConfig
from rag_r1.tools.retrieval.query_format import (
    MAX_READY_BYTES,
    VERSION_HEADER,
    QueryFormatError,
    RemoteQueryFormat,
    choose_mode,
)

logger = logging.getLogger(__name__)

#: What the policy reads when a search could not be answered. A fixed text: a server's own is hostile data.
FAILURE_TEXT = "The search engine did not answer. Try another query, or answer with what is known."
#: A response larger than this many bytes is not a search result.
MAX_RESPONSE_BYTES = 64 << 20
#: Most JSON values of a response, and of it for each document that was asked for.
_FEW_VALUES, _VALUES_OF_A_DOCUMENT = 50_000, 200
#: The environment variable with the server's bearer token.
TOKEN_VARIABLE = "RETRIEVAL_TOKEN"
_LONGEST_WAIT_S = 20.0

Result = list[Document] | Failure


@dataclass
class ClientStats:
    """Counts since the client was created. queries = cached + joined + sent."""

    queries: int = 0
    cached: int = 0
    joined: int = 0
    sent: int = 0
    requests: int = 0
    retried: int = 0
    failed: int = 0


def failure(detail: str) -> Failure:
    """The result of a query that got no answer; `detail` is for people."""
    return Failure(FAILURE_TEXT, "retriever", detail[:200])


def token_header() -> dict[str, str]:
    """The header with the token in `TOKEN_VARIABLE`; empty without one. It must not be logged."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def make_retrieval(options: Mapping[str, Any], key: str) -> RetrievalClient:
    """The tool `retrieval` of `rag_r1.tools`: a further retrieval server, or another index of the same one.
    Raises OptionsError."""
    return RetrievalClient(options_from(RetrieverConfig, options, key))


class _BadResponse(Exception):
    """The server answered, but not with results for these queries."""


class RetrievalClient:
    """Sends queries to a retrieval server; bound to the event loop in which it is first used."""

    def __init__(self, config: RetrieverConfig):
        self.config = config
        self.stats = ClientStats()
        self._kept = QueryCache(config.cache_size)
        self._in_flight: dict[str, asyncio.Future[Result]] = {}
        self._batcher = QueryBatcher(config.gather_s, config.max_queries, self._fetch)
        self._session: aiohttp.ClientSession | None = None
        self._retry = RetryPolicy(config.retries, config.backoff_s, _LONGEST_WAIT_S)
        self._format = RemoteQueryFormat(config.base, self._get, self._retry)

    async def in_context(self, queries: Sequence[str], context: Context) -> Sequence[str] | Failure:
        """What to search for instead of these queries of a turn: see `agentic_input`. A Failure if the server
        does not tell its separator, or its encoder was trained with another mode than is configured."""
        if not self.config.agentic_input:
            return queries
        try:
            form = await self._format.format()
            mode = choose_mode(form, self.config.mode)
        except (QueryFormatError, aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            if isinstance(error, QueryFormatError) and not error.stops(self.config.mode):
                return queries
            logger.warning("no separator from %s (%s)", self.config.base, error)
            return failure(str(error) or type(error).__name__)
        asked = context()
        return [form.query(asked, query, mode) for query in queries]

    async def search(self, queries: Sequence[str]) -> list[Result]:
        """Documents for each query, best first, or a Failure. Never raises for a failed search."""
        waiting: list[Result | asyncio.Future[Result]] = []
        fresh: list[str] = []
        for query in queries:
            self.stats.queries += 1
            if (hit := self._kept.get(query)) is not None:
                self.stats.cached += 1
                waiting.append(hit)
                continue
            if query in self._in_flight:
                self.stats.joined += 1
            else:
                self._in_flight[query] = asyncio.get_running_loop().create_future()
                fresh.append(query)
            waiting.append(self._in_flight[query])
        if fresh:
            self._batcher.add(fresh)
        return [await asyncio.shield(item) if isinstance(item, asyncio.Future) else item for item in waiting]

    async def close(self) -> None:
        """Cancel requests in flight and close the connections."""
        for turn in self._batcher.drain():
            self._settle(turn, [failure("cancelled")] * len(turn))
        self._format.cancel()
        await self._batcher.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _fetch(self, turns: list[list[str]]) -> None:
        queries = [query for turn in turns for query in turn]
        results: list[Result] = [failure("cancelled")] * len(queries)
        sent_at = self._kept.changes
        try:
            self.stats.sent += len(queries)
            results = await self._ask_with_retries(turns)
        except Exception as error:  # a bug of ours: only these queries fail, and it is logged
            logger.exception("search failed at %s", self.config.endpoint)
            results = [failure(f"{type(error).__name__}: {error}")] * len(queries)
        finally:  # also when cancelled: a future without a task would never be resolved
            self._settle(queries, results, sent_at)

    def _settle(self, queries: list[str], results: list[Result], sent_at: int = 0) -> None:
        """Deliver the results to all searches that wait for these queries."""
        for query, result in zip(queries, results, strict=True):
            if isinstance(result, Failure):
                self.stats.failed += 1
            else:
                self._kept.keep(query, result, sent_at)
            future = self._in_flight.pop(query)
            if not future.done():
                future.set_result(result)

    async def _ask_with_retries(self, turns: list[list[str]], attempt: int = 0) -> list[Result]:
        """Results of all queries of the turns. After a failure each turn is retried in a request of its own,
        without the queries that have an answer already. So a faulty turn costs those that shared its request
        one attempt at most, and a refused query affects only its own turn."""
        queries = [query for turn in turns for query in turn]
        wait, refused = 0.0, False
        found: list[list[Document] | str]
        try:
            self.stats.requests += 1
            found = await self._ask(queries)
        except aiohttp.ClientResponseError as error:
            found = [f"HTTP {error.status}"] * len(queries)
            # Otherwise the server understood the request, and would refuse it again.
            refused = not is_transient(error.status)
            wait = retry_after(error.headers)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, _BadResponse) as error:
            found = [f"{type(error).__name__}: {error}"] * len(queries)
        problems = [one for one in found if isinstance(one, str)]
        if not problems:
            return [one for one in found if not isinstance(one, str)]
        if refused and len(turns) > 1:
            return await self._ask_each(turns, attempt)
        if refused or attempt >= self._retry.retries:
            logger.warning(
                "search failed at %s (%s), %d queries", self.config.endpoint, problems[0][:200], len(problems)
            )
            return [failure(one) if isinstance(one, str) else one for one in found]
        left = _without_answer(turns, found)
        self.stats.retried += len(left)
        await asyncio.sleep(self._retry.delay(attempt, wait))
        again = iter(await self._ask_each(left, attempt + 1))
        return [next(again) if isinstance(one, str) else one for one in found]

    async def _ask_each(self, turns: list[list[str]], attempt: int) -> list[Result]:
        found = await asyncio.gather(*(self._ask_with_retries([turn], attempt) for turn in turns))
        return [result for results in found for result in results]

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self.config.max_connections)
            self._session = bounded_session(token_header(), self.config.timeout_s, connector=connector)
        return self._session

    async def _get(self, address: str) -> tuple[int, bytes]:
        async with self._connected().get(address, allow_redirects=False) as response:
            try:
                return response.status, await read_body(response, MAX_READY_BYTES)
            except BodyTooLargeError:
                return response.status, b""  # it describes no server

    async def _ask(self, queries: list[str]) -> list[list[Document] | str]:
        """For each query its documents, or what is wrong with them."""
        payload, sent_at = self.config.wire_format.payload(queries, self.config.topk), self._kept.changes
        # A redirect would carry queries and token to an address that nobody has configured.
        posted = self._connected().post(self.config.endpoint, json=payload, allow_redirects=False)
        async with posted as response:
            if response.status != 200:
                raise aiohttp.ClientResponseError(
                    response.request_info, response.history, status=response.status, headers=response.headers
                )
            version = response.headers.get(VERSION_HEADER)
            self._format.seen(version)
            self._kept.seen(version, sent_at)
            try:
                body = await read_body(response, MAX_RESPONSE_BYTES)
            except BodyTooLargeError as error:
                raise _BadResponse(str(error)) from error
        most_values = _FEW_VALUES + _VALUES_OF_A_DOCUMENT * len(queries) * self.config.topk
        try:
            return self.config.wire_format.parse_each(
                read_json(body, most_values), len(queries), self.config.topk
            )
        except (ValueError, RecursionError) as error:
            raise _BadResponse(str(error)) from error


def _without_answer(turns: list[list[str]], found: Sequence[list[Document] | str]) -> list[list[str]]:
    """The turns without the queries that have an answer; turns that are then empty are left out."""
    results = iter(found)
    left = [[query for query in turn if isinstance(next(results), str)] for turn in turns]
    return [turn for turn in left if turn]
