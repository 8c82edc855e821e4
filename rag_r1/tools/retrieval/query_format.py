"""Reads the query format of a retrieval server from its `/ready`.

The separator is in the manifest of the index and not in the configuration of an agent, so the two cannot
disagree. The manifest also says what the encoder was trained to read (`query_mode`), which a configuration
need not repeat and must not contradict. A client requests both when its first query needs them. It keeps them
until the answer to a search shows that the index has been reloaded (`X-Index-Version`); later searches are
written for the new index.

An index without a separator (BM25, or a server of another project) is an error, which names the key and the
remedy. Unless `mode` is `plain`, the plain query is not sent instead, since an encoder that was trained
otherwise would silently give bad results.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from rag_r1.io.retry import RetryPolicy, TransientError, is_transient, with_retries
from rag_r1.protocols.retriever_query import Context, Mode, QueryFormat
from rag_r1.tools.lazy import has_failed

#: Most bytes of the answer to `/ready`.
MAX_READY_BYTES = 1 << 20
_INDEX_ADDRESS = re.compile(r"(?P<root>.*)/indexes/(?P<name>[^/]+)")
#: The keys of the two problems with a format, and the remedies: the server has none, or its mode is another.
KEY, MODE_KEY = "rag_r1.retriever.agentic_input", "rag_r1.retriever.mode"
REMEDY = "serve a dense index (rag-r1 index build --encoder MODEL), or set it to false"
MODE_REMEDY = "leave it out, or serve an index whose encoder was trained with this mode"
#: The header of an answer with the version of the index that was searched.
VERSION_HEADER = "X-Index-Version"

#: Sends GET to an address; returns the status and the body. Raises the errors of connections.
Get = Callable[[str], Awaitable[tuple[int, bytes]]]


class QueryFormatError(ValueError):
    """Raised if the server does not state its query format, or states another one than the configuration has
    under `key`. `what` is the reason, and `is_transient` whether a later request may succeed."""

    def __init__(self, what: str, *, is_transient: bool = False, key: str = KEY, remedy: str = REMEDY):
        super().__init__(f"{key}: {what}; {remedy}")
        self.what, self.is_transient, self.key, self.remedy = what, is_transient, key, remedy

    def stops(self, mode: Mode | None) -> bool:
        """Return whether a query in this mode cannot be sent. A plain one can be sent without a separator."""
        return mode != "plain" or self.key != KEY


def ready_address(base: str) -> tuple[str, str | None]:
    """Return the address of the server's `/ready`, and the index that the path of `base` names, if any (as in
    `http://host:8000/indexes/wiki`)."""
    match = _INDEX_ADDRESS.fullmatch(base)
    return (f"{match['root']}/ready", match["name"]) if match else (f"{base}/ready", None)


def read_format(address: str, index: str | None, status: int, body: bytes) -> QueryFormat:
    """Return the format in an answer to `GET /ready`. Raises QueryFormatError, which names key and remedy."""
    if status != 200:
        raise QueryFormatError(f"{address} answers HTTP {status}", is_transient=is_transient(status))
    try:
        ready = json.loads(body) if len(body) <= MAX_READY_BYTES else None
    except (ValueError, RecursionError):
        ready = None
    try:
        return QueryFormat.of_ready(ready, index)
    except ValueError as error:
        raise QueryFormatError(str(error)) from None


def choose_mode(query_format: QueryFormat, configured: Mode | None) -> Mode:
    """Return the mode of queries: that of the encoder's training, else the configured one, else `agentic`
    (the question). Raises QueryFormatError if the first two differ."""
    if configured is not None and query_format.mode not in (None, configured):
        what = f"it is {configured}, but the encoder of the index was trained with {query_format.mode}"
        raise QueryFormatError(what, key=MODE_KEY, remedy=MODE_REMEDY)
    return query_format.mode or configured or "agentic"


class RemoteQueryFormat:
    """Writes queries in the format of a server; bound to the running event loop. `mode` is the configured
    one.

    The first query requests the format from the server, and queries that arrive meanwhile wait for the same
    answer. If the request failed, or the index was reloaded since, the next query requests the format again.
    """

    def __init__(self, base: str, mode: Mode | None, get: Get, retry: RetryPolicy):
        self._address, self._index = ready_address(base)
        self._mode, self._get, self._retry = mode, get, retry
        self._request: asyncio.Task[QueryFormat] | None = None

    async def texts(self, queries: Sequence[str], context: Context) -> Sequence[str]:
        """Return the texts to send in place of the queries of a turn, and note them in the context. Raises
        QueryFormatError if the server does not name its separator, unless the mode is `plain`, or if its
        encoder was trained with another mode than is configured; and the errors of connections after the last
        retry."""
        try:
            query_format = await self.format()
            mode = choose_mode(query_format, self._mode)
        except QueryFormatError as error:
            if error.stops(self._mode):
                raise
            return queries
        call_context = context.get()
        context.sent |= {query: query_format.query(call_context, query, mode) for query in queries}
        return [context.sent[query] for query in queries]

    async def format(self) -> QueryFormat:
        """Return the server's format. Raises QueryFormatError, and the errors of connections after the last
        retry or if the client is closed meanwhile."""
        if self._request is None or has_failed(self._request):
            self._request = asyncio.create_task(self._ask())
        request = self._request
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            current_task = asyncio.current_task()
            if not request.cancelled() or (current_task is not None and current_task.cancelling()):
                raise  # the caller was cancelled, and not the request
            raise ConnectionAbortedError("the client was closed while it asked for the separator") from None

    def note_version(self, version: str | None) -> None:
        """Note the version of the index in an answer. If the format is of another version, the next query
        requests it again."""
        if version is None or self._request is None or not self._request.done() or has_failed(self._request):
            return
        if (current := self._request.result().index_version) is not None and version != str(current):
            self._request = None

    def cancel(self) -> None:
        """Cancel the request for the format, if it is in flight."""
        if self._request is not None:
            self._request.cancel()

    async def _ask(self) -> QueryFormat:
        """Request the format, with retries. Raises the error of the last attempt."""
        try:
            return await with_retries(self._retry, self._ask_once)
        except TransientError as error:
            assert error.__cause__ is not None  # `_ask_once` raises it from another error
            raise error.__cause__ from None

    async def _ask_once(self) -> QueryFormat:
        """Request the format once. Raises TransientError, from the cause, for a failure that may pass."""
        try:
            status, body = await self._get(self._address)
            return read_format(self._address, self._index, status, body)
        except (QueryFormatError, aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            if isinstance(error, QueryFormatError) and not error.is_transient:
                raise
            raise TransientError(str(error)) from error
