"""A rate limiter and a cancel token for the requests of a run.

`RateLimiter` spaces requests: a request waits for its turn under the limits of requests and of tokens per
minute, and all of them wait if the endpoint has said when it wants to be asked again. The tokens of a request
are known afterwards only; until then an estimate stands for them.

`CancelToken` ends a run before its last question: nothing more is sent, what is under way comes back, and the
next start goes on from there.
"""

from __future__ import annotations

import asyncio
import random


class CancelToken:
    """Ends a run, for the first `reason` that is given."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._cancelled = asyncio.Event()

    def __call__(self, reason: str) -> None:
        """Let nothing more begin."""
        if self.reason is None:
            self.reason = reason
            self._cancelled.set()

    async def wait(self) -> None:
        """Return when the run is to end."""
        await self._cancelled.wait()

    async def passed(self) -> None:
        """Return at once while the run goes on; once it is to end, never (the runner cancels the episode,
        which is then played to its end by the next start)."""
        if self.reason is not None:
            await asyncio.get_running_loop().create_future()


class RateLimiter:
    """Limits per minute; None: no limit."""

    def __init__(self, requests: float | None = None, tokens: float | None = None):
        self._a_request = 0.0 if requests is None else 60.0 / requests
        self._a_token = 0.0 if tokens is None else 60.0 / tokens
        self._next_request = self._next_token = self._paused_until = 0.0

    async def turn(self, tokens: int) -> None:
        """Wait until a request of about so many tokens may be sent."""
        now = asyncio.get_running_loop().time()
        at = max(now, self._next_request, self._next_token)
        self._next_request = at + self._a_request
        self._next_token = at + tokens * self._a_token
        await self._until(at)
        while self._paused_until > asyncio.get_running_loop().time():
            # Not all at the same moment.
            await self._until(self._paused_until + random.uniform(0, 0.2))

    def correct(self, estimated: int, tokens: int) -> None:
        """A request of `estimated` tokens had `tokens`."""
        self._next_token += (tokens - estimated) * self._a_token

    def pause(self, seconds: float) -> None:
        """Nothing is sent for so long."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    async def _until(self, time: float) -> None:
        seconds = time - asyncio.get_running_loop().time()
        if seconds > 0:
            await asyncio.sleep(seconds)
