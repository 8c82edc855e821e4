"""Limits the size and the time of a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag_r1.http_server.errors import RequestError, error_response
from rag_r1.http_server.stopping import call_until_stopped

#: Most bytes of a body. A conversation of 200 long answers is smaller.
MAX_BODY_BYTES = 2 << 20
#: Seconds within which a body must arrive.
BODY_TIMEOUT_S = 30.0


def limit_body(receive: Receive) -> Receive:
    """Return a `receive` that raises RequestError for a body that is too large or too slow, before it fills
    the memory."""
    deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
    size, is_complete = 0, False

    async def receive_part() -> Message:
        nonlocal size, is_complete
        if is_complete:  # only the disconnection follows, which may happen at any time
            return await receive()
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            # A wait of 0 would also refuse a part that has already arrived.
            message = await asyncio.wait_for(receive(), max(remaining, 0.001))
        except TimeoutError:
            raise RequestError(408, "timeout", f"no body arrived within {BODY_TIMEOUT_S:g} s") from None
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise RequestError(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")
        return message

    return receive_part


class WholeBodyMiddleware:
    """An ASGI layer that passes requests on to an app of another package only when their whole body has
    arrived within the limits of this module. `check` is called with the body, and may raise RequestError. A
    client that goes away before gets no response."""

    def __init__(self, app: ASGIApp, check: Callable[[bytes], None] = lambda body: None):
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        await call_until_stopped(self._forward, scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app with the whole body, or respond with the error of `check` or of the limits."""
        receive_part = limit_body(receive)
        messages: list[Message] = []
        try:
            while not messages or messages[-1].get("more_body"):
                messages.append(await receive_part())
            if messages[-1]["type"] == "http.disconnect":
                return
            self._check(b"".join(message.get("body", b"") for message in messages))
        except RequestError as error:
            response = error_response(error.status_code, error.code, error.detail, {"Connection": "close"})
            return await response(scope, receive, send)
        messages.reverse()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)
