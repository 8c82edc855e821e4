"""Statistics of a few numbers: the mean of those that are known, and the interval of a share."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: How many standard deviations around its mean hold 95 % of a normal distribution.
_Z_95 = 1.96


def mean(values: Iterable[float | None]) -> float:
    """The mean of the values that are not None; nan if there are none. None stands for an episode without a
    score, such as one that ended with a failure."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else math.nan


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` questions, at least one (Wilson, 1927)."""
    z_squared = _Z_95 * _Z_95
    center = share + z_squared / (2 * count)
    half_width = _Z_95 * math.sqrt(share * (1 - share) / count + z_squared / (4 * count * count))
    scale = 1 + z_squared / count
    return (center - half_width) / scale, (center + half_width) / scale
