"""How the encoder behind a retrieval server wants its queries, asked once at the server's `/ready`.

The separator stands in the manifest of the index and nowhere in the configuration of an agent, so that the
two cannot disagree. A client asks when its first query needs it and keeps the answer: an index that is
reloaded with another separator or length limit needs clients that are started again. A server whose index has
no separator (BM25, or a server of another make) is an error that names the key and the remedy. The plain
query is never sent instead: an encoder that was trained otherwise would answer it badly, and silently.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable

import aiohttp

from rag_r1.retriever_query import QueryFormat

#: A longer answer is no description of a server.
MAX_READY_BYTES = 1 << 20
_OF_INDEX = re.compile(r"(?P<root>.*)/indexes/(?P<name>[^/]+)")
KEY = "rag_r1.retriever.agentic_input"
REMEDY = "serve a dense index (build_index.py --encoder MODEL), or set it to false"

#: GET of an address: its status and body. Raises the errors of connections.
Get = Callable[[str], Awaitable[tuple[int, bytes]]]


class FormatError(ValueError):
    """The server does not tell how it wants its queries, for the reason in `what`. `again`: asking later may
    help."""

    def __init__(self, what: str, *, again: bool = False):
        super().__init__(f"{KEY}: {what}; {REMEDY}")
        self.what, self.again = what, again


def ready_address(base: str) -> tuple[str, str | None]:
    """The address of `/ready` of the server behind `base`, and the index that `base` names, if it does so in
    its path (`http://host:8000/indexes/wiki`)."""
    found = _OF_INDEX.fullmatch(base)
    return (f"{found['root']}/ready", found["name"]) if found else (f"{base}/ready", None)


def read_format(address: str, index: str | None, status: int, body: bytes) -> QueryFormat:
    """The format in an answer to `GET /ready`. Raises FormatError, whose text names key and remedy."""
    if status != 200:
        raise FormatError(f"{address} answers HTTP {status}", again=status >= 500 or status == 429)
    try:
        ready = json.loads(body) if len(body) <= MAX_READY_BYTES else None
    except (ValueError, RecursionError):
        ready = None
    try:
        return QueryFormat.of_ready(ready, index)
    except ValueError as error:
        raise FormatError(str(error)) from None


class AskedFormat:
    """The format of a server, asked for by the first query that needs it; bound to the running event loop.
    Queries that arrive meanwhile wait for the same answer. What failed is asked again by the next query."""

    def __init__(self, base: str, get: Get, wait: Callable[[int], Awaitable[None]], retries: int):
        self._address, self._index = ready_address(base)
        self._get, self._wait, self._retries = get, wait, retries
        self._asked: asyncio.Task[QueryFormat] | None = None

    async def format(self) -> QueryFormat:
        """Raises FormatError, and the errors of connections after the last retry."""
        if self._asked is None or (self._asked.done() and _failed(self._asked)):
            self._asked = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asked)

    def cancel(self) -> None:
        """End a request that is under way."""
        if self._asked is not None:
            self._asked.cancel()

    async def _ask(self) -> QueryFormat:
        for attempt in range(self._retries + 1):
            try:
                status, body = await self._get(self._address)
                return read_format(self._address, self._index, status, body)
            except FormatError as error:
                if attempt == self._retries or not error.again:
                    raise
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                if attempt == self._retries:
                    raise
            await self._wait(attempt)
        raise AssertionError("the last attempt returns or raises")


def _failed(task: asyncio.Task[QueryFormat]) -> bool:
    return task.cancelled() or task.exception() is not None
