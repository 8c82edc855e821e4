"""When a failed request may be repeated: a doubling back-off with jitter, or the engine's `Retry-After`."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_MAX_BACKOFF_S = 8.0


def backoff_seconds(first_s: float, attempt: int) -> float:
    """Seconds to wait after failed attempt `attempt`, from 0: about `first_s`, doubled each time."""
    return min(first_s * 2**attempt, _MAX_BACKOFF_S) * random.uniform(0.5, 1.5)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, in either of its forms; None without a valid one."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal() and len(value) < 7:  # more digits are weeks: not meant
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def whole_seconds(seconds: float | None) -> int:
    """The value of a Retry-After header for this time: rounded up, and 1 for less, or for no time."""
    return max(1, math.ceil(seconds or 1))
