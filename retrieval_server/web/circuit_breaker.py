"""A circuit breaker: decides when to send no requests to a web engine. It has no clock: time is an argument.

Requests are held back for two reasons. *Limited*: the engine said how long to wait (`Retry-After`); all
requests wait that long, not only the one that was answered so. *Down*: so many requests failed in a row that
more would only queue up behind their time-outs. Then all are refused at once for a while; after that one is
let through as a probe, and its outcome decides for all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BreakerHold:
    """No request may be sent for `seconds`. `down`: because the engine fails; else it limits the rate."""

    seconds: float
    down: bool


class CircuitBreaker:
    """Counts failures in a row; any answer, even a refusal, shows that the engine is up."""

    def __init__(self, failures: int = 8, cool_down_s: float = 5.0):
        self.cool_down_s = cool_down_s
        self._max_failures = failures
        self._failures = 0
        self._closed_until = float("-inf")
        self._limited_until = float("-inf")
        self._probing = False

    @property
    def is_down(self) -> bool:
        """Whether so many requests failed in a row that the engine counts as down."""
        return self._failures >= self._max_failures

    def hold(self, now: float) -> BreakerHold | None:
        """Returns what holds a request back; None lets it go: report its outcome with a method below."""
        if self.is_down:
            if self._probing:
                return BreakerHold(self.cool_down_s, down=True)
            if now < self._closed_until:
                return BreakerHold(self._closed_until - now, down=True)
        if now < self._limited_until:
            return BreakerHold(self._limited_until - now, down=False)
        self._probing = self.is_down
        return None

    def answered(self) -> None:
        """Note that a request got an answer."""
        self._failures = 0
        self._probing = False

    def limited(self, now: float, seconds: float) -> None:
        """Note that the engine asked to repeat a request in `seconds`."""
        self.answered()
        self._limited_until = max(self._limited_until, now + seconds)

    def failed(self, now: float) -> bool:
        """Note that a request got no answer or a server error. True if the engine is down from now on."""
        was_down = self.is_down
        self._failures += 1
        self._probing = False
        if self.is_down:
            self._closed_until = now + self.cool_down_s
        return self.is_down and not was_down

    def abandoned(self) -> None:
        """Note that a request was given up before its outcome was known."""
        self._probing = False
