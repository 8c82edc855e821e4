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

#: How often the delay of the event loop is measured, and which delay is too long, in seconds.
_INTERVAL_S, _LATE_S = 0.05, 0.1
_SEARCH = re.compile(r"(?:/indexes/([^/]+))?/(?:retrieve|queries)")
#: Refusals between two measurements that are too many to read each request first: 100 per second.
_MANY = 5


class LoopMonitor:
    """Whether there is no time to read requests that will be refused. ``watch`` runs in the event loop."""

    def __init__(self) -> None:
        #: Seconds by which the latest sleep lasted too long.
        self.late_s = 0.0
        self._refusing, self._refused = False, 0

    async def watch(self) -> None:
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(_INTERVAL_S)
            self.late_s = time.monotonic() - asleep - _INTERVAL_S
            self._refusing, self._refused = self._refused >= _MANY, 0

    def would_refuse(self) -> None:
        """Note a search that could only be answered from the cache."""
        self._refused += 1

    @property
    def pressed(self) -> bool:
        return self._refusing or self._refused >= _MANY or self.late_s > _LATE_S


def refusal_at(services: Services, path: str) -> Callable[[], RequestError] | None:
    """What refuses a search at this path whatever its body says; None if the body matters, or nothing would.

    Call it if the request is refused: that counts.
    """
    match = _SEARCH.fullmatch(path)
    if match is None or (match[1] is None and len(services.indexes.by_name) > 1):
        return None  # no search, or its body may name another index
    overload = services.search.overload(match[1])
    return overload and partial(services.search.refuse_overload, match[1], overload)


class LoadSheddingMiddleware:
    """Answers a search at once when the watch is pressed and the engine would refuse it anyway."""

    def __init__(self, app: ASGIApp, watch: LoopMonitor, services: Services):
        self._app, self._watch, self._services = app, watch, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refuse = None
        if scope["type"] == "http" and scope["method"] == "POST":
            refuse = refusal_at(self._services, scope["path"])
        if refuse is not None:
            self._watch.would_refuse()
            if self._watch.pressed:
                return await _send(refuse(), send)
        await self._app(scope, receive, send)


async def _send(refused: RequestError, send: Send) -> None:
    """What ``error_response`` would send, without the cost of its classes."""
    body = json.dumps({"error": refused.error, "reason": refused.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | (refused.headers or {})
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
