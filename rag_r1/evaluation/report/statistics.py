"""Simple statistics: the mean of the known values, and the interval of a share."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: 95 % of a normal distribution lie within this many standard deviations of its mean.
_Z_95 = 1.96


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are not None; nan if there are none. None is the value of an
    episode without a score, such as one that failed."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else math.nan


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927) of a share of `count` questions, which must be at least 1."""
    z_squared = _Z_95 * _Z_95
    center = share + z_squared / (2 * count)
    half_width = _Z_95 * math.sqrt(share * (1 - share) / count + z_squared / (4 * count * count))
    scale = 1 + z_squared / count
    return (center - half_width) / scale, (center + half_width) / scale
