"""What a stopping server responds to the requests that it cancels."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag_r1.http_server.errors import ErrorReply, error_response

#: Seconds after which the client of a stopping server may retry, since another server may then run.
RETRY_S = 5
#: The error of a request that is ended because the server stops.
STOPPING = ErrorReply(503, "stopping", f"the server stops: ask again in {RETRY_S} s")


async def call_until_stopped(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the app, and respond with STOPPING if the request is cancelled before its response has begun. At
    the end of a stop the server cancels all remaining requests, such as one whose body has not arrived.
    The cancellation ends here."""
    has_begun = False

    async def send_and_note(message: Message) -> None:
        nonlocal has_begun
        has_begun = has_begun or message["type"] == "http.response.start"
        await send(message)

    try:
        await app(scope, receive, send_and_note)
    except asyncio.CancelledError:
        if not has_begun:
            # A connection accepted when the stop began would otherwise stay open for another request.
            headers = {"Retry-After": str(RETRY_S), "Connection": "close"}
            await error_response(*STOPPING, headers)(scope, receive, send)
