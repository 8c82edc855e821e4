"""The retry policy of the clients of model servers and of the retrieval server.

A client raises `TransientError` for a failure that may pass, and calls `with_retries`. Between attempts it
waits as long as `RetryPolicy` says: exponential back-off with jitter, or the server's `Retry-After`, up to a
limit, if that is longer. For searches, tools/retrieval/client.py has a retry loop of its own and uses
`RetryPolicy.delay`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

Result = TypeVar("Result")

#: Statuses below 500 after which a retry may succeed.
_TRANSIENT_STATUSES = {408, 409, 425, 429}
#: Number of doublings after which the back-off stays constant: 2**1024 would be too large for a float.
_MAX_DOUBLINGS = 32
#: Length of the longest number accepted in Retry-After, which is about three years.
_MAX_DIGITS = 8


class TransientError(Exception):
    """A failure that may pass; the message gives the reason. `wait_s` is the number of seconds that the
    server asks the client to wait."""

    def __init__(self, reason: str, wait_s: float = 0.0):
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True)
class RetryPolicy:
    """How often and after which waits a request is repeated."""

    #: Number of attempts after the first.
    retries: int
    #: Seconds before the first retry; doubled for each further one, and jittered.
    backoff_s: float
    #: Most seconds between two attempts, whatever the server asks for.
    longest_wait_s: float

    def delay(self, attempt: int, wait_s: float = 0.0) -> float:
        """Return the number of seconds to wait after the failure of `attempt` (counted from 0), if the
        server asks for `wait_s`."""
        jittered = backoff(self.backoff_s, attempt) * random.uniform(0.5, 1.5)
        return min(max(wait_s, jittered), self.longest_wait_s)


def backoff(first_s: float, attempt: int) -> float:
    """Return the seconds of exponential back-off after `attempt` (counted from 0), without jitter."""
    return first_s * 2 ** min(attempt, _MAX_DOUBLINGS)


async def with_retries(policy: RetryPolicy, send: Callable[[], Awaitable[Result]]) -> Result:
    """Return the result of `send`, which is repeated while it raises TransientError. After the last attempt,
    raises TransientError with the number of attempts in the message."""
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
    """Return whether a request that received this HTTP status may succeed later."""
    return status in _TRANSIENT_STATUSES or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED)


def retry_after(headers: Mapping[str, str] | None) -> float:
    """Return the seconds to wait according to the header Retry-After, which is a number or a date; 0 if the
    header is missing or unreadable."""
    value = (headers or {}).get("Retry-After", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit() and len(value) <= _MAX_DIGITS:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
