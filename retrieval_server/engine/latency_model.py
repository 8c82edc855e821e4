"""Predicts latency from recent batches.

`Retry-After` is computed from the expected time; whether a request would be answered too late, and so is
refused, from the time with its usual scatter. The difference matters when the server is overloaded: work that
competes with the encoder for the cores, refusing requests among it, makes equal batches take unequal times. A
server that admits as much as it can do on average is late with about half of what it admits at the limit.

Time is an argument everywhere, in seconds of any monotonic clock.
"""

from __future__ import annotations

import math

#: Weight of the newest batch in the averages.
_AVERAGE_WEIGHT = 0.2
#: Weight of the newest batch in the scatter.
_SCATTER_WEIGHT = 0.1
#: The prior weighs as much as sizes that scatter by a quarter of their mean.
_PRIOR_SPREAD = 0.25
#: Mean deviations above the expected time below which 95 % of normally distributed times lie.
_DEVIATIONS = 2.0


class LatencyModel:
    """A time for each batch and one for each query, and how far the batches are from it.

    Both times are needed. With a time for each query alone, a server that has refused many, and so works in
    small batches, would seem slow and refuse still more; with a time for each batch alone, the number of
    queries would not matter. The expected time is `batches * a + queries * b`: the weighted least-squares
    line through (size, seconds), with `b` pulled towards half the average time per query while sizes hardly
    differ. Older batches weigh less.

    The scatter is the mean deviation of a batch from its expected time, as a share of that: large batches
    scatter by more seconds than small ones, and those of a machine that has become fast again by fewer.
    """

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._last_end = float("-inf")
        self._queries = self._seconds = 0.0  # averages
        self._variance = self._covariance = 0.0  # of the queries; of queries and seconds
        self._deviation = 0.0  # of a batch from its expected time, as a share of that

    def batch_done(self, queries: int, started: float, finished: float) -> None:
        """Note a batch of so many queries, and when it began and ended.

        Stages may overlap, so its time is counted from the end of the batch before it.
        """
        seconds = finished - max(started, self._last_end)
        if expected := self.expected(queries):
            error = abs(seconds - expected) / expected
            self._deviation += _SCATTER_WEIGHT * (error - self._deviation)
        newest = _AVERAGE_WEIGHT if self._queries else 1.0
        self._last_end = finished
        queries_off, seconds_off = queries - self._queries, seconds - self._seconds
        self._queries += newest * queries_off
        self._seconds += newest * seconds_off
        self._variance = (1 - newest) * (self._variance + newest * queries_off * queries_off)
        self._covariance = (1 - newest) * (self._covariance + newest * queries_off * seconds_off)

    def expected(self, queries: int) -> float:
        """Seconds that this many queries will take, in full batches; 0.0 before the first batch."""
        if not (queries and self._queries):
            return 0.0
        average = self._seconds / self._queries
        prior = average / 2
        prior_weight = (self._queries * _PRIOR_SPREAD) ** 2  # a variance: it counts less as sizes differ
        slope = (self._covariance + prior_weight * prior) / (self._variance + prior_weight)
        slope = min(max(slope, 0.0), average)
        return self._batches(queries) * (self._seconds - slope * self._queries) + queries * slope

    def upper_bound(self, queries: int) -> float:
        """Seconds with a margin for scatter: if batches scatter as lately, normally and independently of each
        other, 19 of 20 times are below."""
        scatter = self._deviation * self.expected(min(queries, self._max_batch))
        return self.expected(queries) + _DEVIATIONS * scatter * math.sqrt(self._batches(queries))

    def _batches(self, queries: int) -> int:
        """How many full batches that many queries are, the last one included."""
        return math.ceil(queries / self._max_batch)
