"""ASGI layers around the app: the limit on a body's size, and the measurement of every request."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_server.metrics import Metrics


class BodyLimit:
    """A body beyond the limit is refused before it is in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int):
        self._app, self._max = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max:
                raise HTTPException(413, f"the body is larger than {self._max} bytes")
            return message

        await self._app(scope, counted, send)


class Measure:
    """Counts answers and their seconds by route. Only the server's own routes are labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]):
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.monotonic(), 500  # what an exception becomes further out

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # The router leaves its route in the scope: the label of a path with a name in it is its template.
            path = getattr(scope.get("route"), "path", scope["path"])
            route = path if path in self._routes else "other"
            self._metrics.requests.labels(route, status).inc()
            self._metrics.request_seconds.labels(route).observe(time.monotonic() - started)
