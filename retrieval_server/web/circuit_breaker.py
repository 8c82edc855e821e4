"""A circuit breaker, which decides when no requests may be sent to a web engine.

Requests are held back in two states. *Limited*: the engine said how long to wait (`Retry-After`), and all
requests wait that long, not only the one that got this answer. *Down*: so many requests have failed in a row
that further ones would only queue up behind their time-outs. Then all requests are refused at once for a
while. After that one request is let through as a probe, and its outcome, or that of a request which was sent
before, decides for all.

Every time is passed as an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BreakerHold:
    """Why no request may be sent now, and for how long."""

    seconds: float
    #: Whether the engine counts as down; otherwise it limits the rate.
    down: bool


class CircuitBreaker:
    """Counts failures in a row. Any answer, even a refusal, shows that the engine is up.

    After this many `failures` in a row the engine counts as down, and requests are refused for `cool_down_s`.
    """

    def __init__(self, failures: int = 8, cool_down_s: float = 5.0):
        self.cool_down_s = cool_down_s
        self._max_failures = failures
        self._failures = 0
        self._down_until = float("-inf")
        self._limited_until = float("-inf")
        self._probing = False

    @property
    def is_down(self) -> bool:
        """Whether so many requests have failed in a row that the engine counts as down."""
        return self._failures >= self._max_failures

    def hold(self, now: float) -> BreakerHold | None:
        """Return what holds a request back, or None if it may be sent.

        The caller must report the outcome of a request that it sends with one of the methods below.
        """
        if self.is_down:
            if self._probing:
                return BreakerHold(self.cool_down_s, down=True)
            if now < self._down_until:
                return BreakerHold(self._down_until - now, down=True)
        if now < self._limited_until:
            return BreakerHold(self._limited_until - now, down=False)
        self._probing = self.is_down
        return None

    def answered(self) -> None:
        """Record that a request got an answer."""
        self._failures = 0
        self._probing = False

    def limited(self, now: float, seconds: float) -> None:
        """Record that the engine asked the client to repeat a request in `seconds`."""
        self.answered()
        self._limited_until = max(self._limited_until, now + seconds)

    def failed(self, now: float) -> bool:
        """Record that a request got no answer or a server error. Returns whether the engine is newly down."""
        was_down = self.is_down
        self._failures += 1
        self._probing = False
        if self.is_down:
            self._down_until = now + self.cool_down_s
        return self.is_down and not was_down

    def abandoned(self) -> None:
        """Record that a request was cancelled before its outcome was known."""
        self._probing = False
