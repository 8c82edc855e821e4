"""Configures uvicorn with limits, and closes connections on which no request arrives.

uvicorn waits for the headers of a request without a limit. So each connection is checked every `CHECK_S`
seconds. It is closed if no request is being answered and none has arrived since the last check, so that
headers have between one and two intervals to arrive. A chat in progress keeps its connection open. uvicorn
itself limits the size of headers; request_body.py limits the size and time of a body.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Seconds between two checks of a connection.
CHECK_S = 15.0
#: Most connections, and so most concurrent requests.
_MAX_CONNECTIONS = 1024
#: Most bytes of the headers of a request.
_MAX_HEAD_BYTES = 64 << 10


def uvicorn_config(app: ASGIApp, *, stop_s: int, lifespan: Literal["on", "off"] = "off") -> uvicorn.Config:
    """Return uvicorn's configuration with the limits of this module. `stop_s` is the number of seconds after
    which a stop cancels running requests, and `lifespan` says whether the app receives the events of the
    server's start and end."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=IdleTimeoutProtocol,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        ws="none",
        lifespan=lifespan,
        proxy_headers=False,  # neither the client's address nor the scheme is used, so none can be forged
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=stop_s,
    )


class IdleTimeoutProtocol(H11Protocol):
    """A connection that closes itself when it is idle."""

    #: CHECK_S, unless a test sets another value.
    check_s = CHECK_S
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check_idle(None, is_start=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _check_idle(self, last_cycle: RequestResponseCycle | None, *, is_start: bool = False) -> None:
        """Close the connection if it is idle, else schedule the next check. `last_cycle` is the request that
        was the latest one at the last check. At the start of the connection, nothing is closed."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if not is_busy and self.cycle is last_cycle and not is_start:
            self.transport.close()
            return
        self._check = self.loop.call_later(self.check_s, self._check_idle, self.cycle)
