"""Estimates a mean, and the interval of a share, from a few values.

The pages of the demo, the examples and the benchmarks use these. Reports of evaluations have the intervals of
bootstrap.py, which knows data sources and several samples of a question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

#: 95 % of a normal distribution lie within this many standard deviations of its mean.
_Z_95 = 1.96


def known_mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are not None; nan if there are none. None stands for a value that is
    not known, such as the score of a failed episode."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else math.nan


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the ends (low, high) of Wilson's 95 % interval (1927) of a `share` among `count` observations.
    `count` must be at least 1."""
    z_squared = _Z_95 * _Z_95
    center = share + z_squared / (2 * count)
    half_width = _Z_95 * math.sqrt(share * (1 - share) / count + z_squared / (4 * count * count))
    scale = 1 + z_squared / count
    return (center - half_width) / scale, (center + half_width) / scale
