"""Connections that never become a request: uvicorn waits for a request's headers as long as the client likes.

Each connection is looked at every `CHECK_S` seconds, and closed if no request of it is being answered and
none has been since the last look. So headers have between one and two of these intervals to arrive. A chat
under way may last: its connection is busy. The size of headers is limited by uvicorn itself (command.py), and
the time of a body in guards.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CHECK_S = 15.0


class WatchedHttp(H11Protocol):
    """One connection."""

    check_s = CHECK_S
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look(None, at_start=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _look(self, last: Any, at_start: bool = False) -> None:
        """`last`: the request (uvicorn's cycle) that was the latest one at the last look."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy and self.cycle is last and not at_start:
            self.transport.close()
            return
        self._check = self.loop.call_later(self.check_s, self._look, self.cycle)
