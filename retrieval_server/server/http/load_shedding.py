"""Load shedding: refuses searches without reading them when the server has no time to read them.

Outside the engine a refused request costs about as much as an accepted one, because its body is read, parsed
and checked before the full queue is noticed. Far above a server's capacity this work alone would take the CPU
from the searches. So a search is refused by its path alone if the engine would refuse one more query and, in
addition, the event loop is late or such searches are frequent. Otherwise the request is read even if the
queue is full, since its answer may be cached or already under way.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_server.errors import RequestError
from retrieval_server.server.services import Services

_INTERVAL_S = 0.05  # between two measurements of the event loop's delay
_MAX_DELAY_S = 0.1  # with a longer delay the event loop has no time to read requests
_SEARCH = re.compile(r"(?:/indexes/([^/]+))?/(?:retrieve|queries)")
#: The number of refusable searches between two measurements (100 per second) from which on none is read.
_MAX_REFUSABLE = 5


class LoopMonitor:
    """Measures whether there is time to read requests that will be refused."""

    def __init__(self) -> None:
        #: Seconds by which the latest sleep took too long.
        self.late_s = 0.0
        self._often_refusable = False  # between the last two measurements
        self._refusable = 0  # searches since the last measurement

    async def watch(self) -> None:
        """Measure the delay of the running event loop and the rate of refusable searches, until cancelled."""
        while True:
            started = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)
            self.late_s = time.monotonic() - started - _INTERVAL_S
            self._often_refusable = self._refusable >= _MAX_REFUSABLE
            self._refusable = 0

    def count_refusable(self) -> None:
        """Count a search that the engine would refuse unless its answer is cached."""
        self._refusable += 1

    @property
    def is_overloaded(self) -> bool:
        """Whether there is no time to read requests that will be refused."""
        return self._often_refusable or self._refusable >= _MAX_REFUSABLE or self.late_s > _MAX_DELAY_S


def refusal_at(services: Services, path: str) -> Callable[[], RequestError] | None:
    """Return a function that refuses a search at this path: it counts the refusal, and returns its error.

    Returns None if it depends on the body whether the search is refused, or if it would be accepted.
    """
    match = _SEARCH.fullmatch(path)
    if match is None or (match[1] is None and len(services.indexes.by_name) > 1):
        return None  # this is not a search, or its body may name another index
    overload = services.search.overload(match[1])
    return overload and partial(services.search.refuse_overload, match[1], overload)


class LoadSheddingMiddleware:
    """Refuses a search without reading it if the server is overloaded and the engine would refuse it."""

    def __init__(self, app: ASGIApp, monitor: LoopMonitor, services: Services):
        self._app, self._monitor, self._services = app, monitor, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refuse = None
        if scope["type"] == "http" and scope["method"] == "POST":
            refuse = refusal_at(self._services, scope["path"])
        if refuse is not None:
            self._monitor.count_refusable()
            if self._monitor.is_overloaded:
                return await _send(refuse(), send)
        await self._app(scope, receive, send)


async def _send(refused: RequestError, send: Send) -> None:
    """Send the same response as `error_response`, without the cost of its classes."""
    body = json.dumps({"error": refused.error, "reason": refused.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | (refused.headers or {})
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
