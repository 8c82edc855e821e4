"""Computes when a failed request may be repeated, by a back-off with jitter or the engine's `Retry-After`."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_MAX_BACKOFF_S = 8.0
_MAX_RETRY_AFTER_S = 1_000_000  # a longer pause, of weeks, is taken for a mistake


def backoff_seconds(first_s: float, attempt: int) -> float:
    """Return the seconds to wait after attempt number `attempt`, from 0.

    They are `first_s`, doubled each time up to 8 s, plus or minus up to half of it.
    """
    return min(first_s * 2**attempt, _MAX_BACKOFF_S) * random.uniform(0.5, 1.5)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header in either of its formats; None without a valid header."""
    value = headers.get("Retry-After", "").strip()
    try:
        is_number = value.isdecimal()
        seconds = float(value) if is_number else parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if seconds < _MAX_RETRY_AFTER_S else None


def whole_seconds(seconds: float | None) -> int:
    """Return the value of a Retry-After header for this time: rounded up, at least 1, and 1 for None."""
    return max(1, math.ceil(seconds or 1))
