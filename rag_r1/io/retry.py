"""When a request that failed is sent again: the one policy of all HTTP clients.

A client raises `TransientError` for a failure that may pass and leaves the rest to `with_retries`, which
waits between the attempts for as long as `RetryPolicy` says: exponential back-off with jitter, or what the
server has asked for (`Retry-After`) if that is longer. The search client, which retries each turn by itself,
uses `RetryPolicy.delay` directly.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

Result = TypeVar("Result")

#: Statuses below 500 that may pass.
_TRANSIENT_STATUSES = {408, 409, 425, 429}
#: After so many doublings the back-off stays as it is: 2**1024 is too large for a float.
_MAX_DOUBLINGS = 32
#: Longest number in a Retry-After, in characters: three years. A longer one counts as unreadable.
_MAX_DIGITS = 8


class TransientError(Exception):
    """A failure that may pass, for the reason in its message. `wait_s`: seconds that the server asks a client
    to wait."""

    def __init__(self, reason: str, wait_s: float = 0.0):
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True)
class RetryPolicy:
    """`retries`: attempts after the first; `backoff_s`: seconds before the first of them, doubled each time,
    with jitter; `longest_wait_s`: most seconds between two attempts, whatever the server asks for."""

    retries: int
    backoff_s: float
    longest_wait_s: float

    def delay(self, attempt: int, wait_s: float = 0.0) -> float:
        """Returns seconds before the next attempt, after `attempt` (from 0) has failed and the server has
        asked for `wait_s`."""
        jittered = backoff(self.backoff_s, attempt) * random.uniform(0.5, 1.5)
        return min(max(wait_s, jittered), self.longest_wait_s)


def backoff(first_s: float, attempt: int) -> float:
    """Returns seconds of exponential back-off after `attempt` (from 0), without jitter."""
    return first_s * 2 ** min(attempt, _MAX_DOUBLINGS)


async def with_retries(policy: RetryPolicy, send: Callable[[], Awaitable[Result]]) -> Result:
    """Calls `send` until it does not raise TransientError, and returns its result. After the last attempt
    raises its TransientError, with the number of attempts in the message and the same cause."""
    for attempt in itertools.count():
        try:
            return await send()
        except TransientError as error:
            if attempt >= policy.retries:
                text = f"{error} (attempt {attempt + 1}, the last)"
                raise TransientError(text, error.wait_s) from error.__cause__
            delay_s = policy.delay(attempt, error.wait_s)
        await asyncio.sleep(delay_s)


def is_transient(status: int) -> bool:
    """Returns whether a request that was answered with this HTTP status may succeed later."""
    return status in _TRANSIENT_STATUSES or status >= 500


def retry_after(headers: Mapping[str, str] | None) -> float:
    """Returns seconds to wait by the header Retry-After, a number or a date; 0 if it is missing or
    unreadable."""
    value = (headers or {}).get("Retry-After", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit() and len(value) <= _MAX_DIGITS:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
