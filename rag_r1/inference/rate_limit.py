"""A rate limiter for the requests to an endpoint.

Each request waits for its turn under the limits of requests and of tokens per minute. All requests wait if
the endpoint has announced when it accepts requests again, and keep within the limits after that. The tokens
of a request are known only after its answer, so an estimate is used until then.
"""

from __future__ import annotations

import asyncio
import random

#: Seconds over which requests are spread after a pause, so that they are not all sent at the same moment.
_SPREAD_S = 0.2
#: Most seconds between two computations of the next start, which a pause or a correction may move.
_POLL_S = 0.1
#: Seconds by which a timer may be early, or a sum of times be rounded.
_TOLERANCE_S = 1e-6


class RateLimiter:
    """Spaces requests so that they stay within limits of requests and tokens per minute; None means no
    limit."""

    def __init__(self, requests_per_min: float | None = None, tokens_per_min: float | None = None):
        self._seconds_per_request = 0.0 if requests_per_min is None else 60.0 / requests_per_min
        self._seconds_per_token = 0.0 if tokens_per_min is None else 60.0 / tokens_per_min
        self._next_request = self._next_token = self._paused_until = 0.0
        #: Held by the request whose turn is next.
        self._turn = asyncio.Lock()

    async def wait_turn(self, tokens: int) -> None:
        """Wait until a request of about this many tokens may be sent."""
        arrival = _now()
        is_paused = self._paused_until > arrival
        async with self._turn:
            while (start := self._earliest_start(arrival)) > _now() + _TOLERANCE_S:
                await asyncio.sleep(min(start - _now(), _POLL_S))
            self._next_request = start + self._seconds_per_request
            self._next_token = start + tokens * self._seconds_per_token
        if is_paused:
            await asyncio.sleep(random.uniform(0, _SPREAD_S))

    def _earliest_start(self, arrival: float) -> float:
        """Return the earliest moment at which a request that came at `arrival` may be sent, as far as is
        known."""
        return max(arrival, self._next_request, self._next_token, self._paused_until)

    def correct(self, estimated_tokens: int, tokens: int) -> None:
        """Replace the estimate for a request that was sent by its actual number of tokens."""
        self._next_token += (tokens - estimated_tokens) * self._seconds_per_token

    def pause(self, seconds: float) -> None:
        """Hold back all requests for a number of seconds from now."""
        self._paused_until = max(self._paused_until, _now() + seconds)


def _now() -> float:
    """Return the time of the event loop in seconds."""
    return asyncio.get_running_loop().time()
