"""ASGI layers around the app for metrics and logs, the bearer token, and the size of a body.

Further layers are in origin_check.py and load_shedding.py; retrieval_server/server/app.py sets the order of
all.
"""

from __future__ import annotations

import hmac
import itertools
import re
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_server.engine.metrics import Metrics
from retrieval_server.server.error_responses import error_response
from retrieval_server.server.request_log import NOTE, RequestNote, log_request

#: Paths that need no token: probes send none, and the API page shows no data.
OPEN_PATHS = frozenset(
    {"/", "/health", "/ready", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
)
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class MetricsMiddleware:
    """Counts and times the responses of each route, and logs each request.

    Every response gets an `X-Request-ID`, which is the client's if it sent a well-formed one. Paths that are
    not routes of the server share the label "other".
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]):
        self._app, self._metrics, self._routes = app, metrics, routes
        prefix = secrets.token_hex(5)  # only once, since the system's random numbers are slow
        self._ids = (f"{prefix}{number % 16**6:06x}" for number in itertools.count())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()
        status = 500  # unless the app starts a response
        request_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        is_valid = _VALID_ID.fullmatch(request_id)
        note = scope[NOTE] = RequestNote(request_id.decode() if is_valid else next(self._ids))

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", note.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - started
            # The router stores its route in the scope; a path with an index's name is counted as its
            # template.
            path = getattr(scope.get("route"), "path", scope["path"])
            route = path if path in self._routes else "other"
            self._metrics.requests.labels(route, status).inc()
            self._metrics.request_seconds.labels(route).observe(seconds)
            log_request(note, route, status, seconds)


class TokenMiddleware:
    """Requires `Authorization: Bearer` with the server's token, except for OPEN_PATHS."""

    def __init__(self, app: ASGIApp, token: str, metrics: Metrics):
        self._app, self._token, self._metrics = app, token.encode(), metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.partition(b" ")
        # The comparison takes constant time, so that its duration does not reveal parts of the token.
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return await self._app(scope, receive, send)
        self._metrics.rejections.labels("", "unauthorized").inc()
        reason = "send the server's token as the header 'Authorization: Bearer TOKEN'"
        answer = error_response(401, "unauthorized", reason, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)


class BodyLimitMiddleware:
    """Refuses a body of more than `max_bytes` before it is in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int):
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        received_bytes = 0
        reason = f"the body is larger than {self._max_bytes} bytes: send less at a time"
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        # Python refuses to convert thousands of digits, so a number that long is not converted.
        if len(declared) > 18 or (declared.isdigit() and int(declared) > self._max_bytes):
            return await error_response(413, "too_large", reason)(scope, receive, send)

        async def receive_counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_bytes:
                raise HTTPException(413, reason)
            return message

        await self._app(scope, receive_counted, send)
