"""When a request that failed is sent again: Retry-After, else exponential back-off with jitter."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime


def retry_delay(attempt: int, backoff_s: float, asked_s: float, longest_s: float) -> float:
    """Seconds before the next attempt, after `attempt` (from 0) has failed. `asked_s`: what the server asks
    for, at least; `longest_s`: at most."""
    backoff = backoff_s * 2**attempt * random.uniform(0.5, 1.5)
    return min(max(asked_s, backoff), longest_s)


def retry_after(value: str) -> float:
    """Seconds to wait by a Retry-After header: a number, or a date; 0 if there is none that can be read."""
    value = value.strip()
    if value.isascii() and value.replace(".", "", 1).isdigit() and len(value) < 9:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
