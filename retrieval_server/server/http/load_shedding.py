"""Load shedding: refuses requests unread when there is no time to read them.

Outside of the engine a refused request costs about as much as an accepted one: its body is read, parsed and
checked before the full queue is noticed. At many times a server's capacity, that work alone takes the CPU
from the searches. So when the event loop is late, or refusals are frequent, and the engine would refuse one
more query anyway, a search is refused by its path alone. Until then every request is read: what is in the
cache, or already under way, is answered even though the queue is full.
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
_MAX_DELAY_S = 0.1  # a longer one leaves no time to read requests
_SEARCH = re.compile(r"(?:/indexes/([^/]+))?/(?:retrieve|queries)")
#: Refusals between two measurements that are too many to read each request first: 100 per second.
_MAX_REFUSALS = 5


class LoopMonitor:
    """Tells whether there is time to read requests that will be refused. `watch` runs in the event loop."""

    def __init__(self) -> None:
        #: Seconds by which the latest sleep lasted too long.
        self.late_s = 0.0
        self._refused_often = False  # between the last two measurements
        self._refused = 0  # since the last one

    async def watch(self) -> None:
        """Measure the delay and count refusals, until cancelled."""
        while True:
            started = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)
            self.late_s = time.monotonic() - started - _INTERVAL_S
            self._refused_often = self._refused >= _MAX_REFUSALS
            self._refused = 0

    def would_refuse(self) -> None:
        """Note a search that could only be answered from the cache."""
        self._refused += 1

    @property
    def pressed(self) -> bool:
        """Whether there is no time to read a request that will be refused."""
        return self._refused_often or self._refused >= _MAX_REFUSALS or self.late_s > _MAX_DELAY_S


def refusal_at(services: Services, path: str) -> Callable[[], RequestError] | None:
    """The refusal of a search at this path whatever its body says; None if the body matters, or none is due.

    Call it if the request is refused: that counts.
    """
    match = _SEARCH.fullmatch(path)
    if match is None or (match[1] is None and len(services.indexes.by_name) > 1):
        return None  # not a search, or its body may name another index
    overload = services.search.overload(match[1])
    return overload and partial(services.search.refuse_overload, match[1], overload)


class LoadSheddingMiddleware:
    """Refuses a search unread when the monitor is pressed and the engine would refuse it anyway."""

    def __init__(self, app: ASGIApp, monitor: LoopMonitor, services: Services):
        self._app, self._monitor, self._services = app, monitor, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refuse = None
        if scope["type"] == "http" and scope["method"] == "POST":
            refuse = refusal_at(self._services, scope["path"])
        if refuse is not None:
            self._monitor.would_refuse()
            if self._monitor.pressed:
                return await _send(refuse(), send)
        await self._app(scope, receive, send)


async def _send(refused: RequestError, send: Send) -> None:
    """Send the response of `error_response`, without the cost of its classes."""
    body = json.dumps({"error": refused.error, "reason": refused.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | (refused.headers or {})
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
