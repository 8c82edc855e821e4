"""Predicts from recent batches how long queries will take.

The engine computes `Retry-After` from the expected time. It refuses a request that might be answered too late
by an upper bound, which includes the usual scatter. The difference matters on an overloaded server: other
work competes with the encoder for the cores, even the refusing of requests, so that equal batches take
unequal times. A server that admits as much as it can do on average would be late with about half of the
requests at the limit.

Every time is passed as an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

import math

#: Weight of the newest batch in the averages.
_AVERAGE_WEIGHT = 0.2
#: Weight of the newest batch in the scatter.
_SCATTER_WEIGHT = 0.1
#: The prior of the slope has the weight of batch sizes that scatter by this share of their mean.
_PRIOR_SPREAD = 0.25
#: 95 % of normally distributed times lie below the expected time plus this many mean deviations.
_DEVIATIONS = 2.0


class LatencyModel:
    """Estimates a fixed time per batch, a time per query, and the scatter of the batches around them.

    The expected time is `batches * batch_seconds + queries * slope`: the weighted least-squares line through
    the (size, seconds) of the batches, in which older batches weigh less. While sizes hardly differ, the
    slope is pulled towards half the average time per query. Both terms are needed. With a time per query
    alone, a server that has refused many requests, and so works in small batches, would seem slow and refuse
    even more; with a time per batch alone, the number of queries would not matter.

    The scatter is the mean deviation of a batch from its expected time, relative to that time, because large
    batches deviate by more seconds than small ones.
    """

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._last_end = float("-inf")
        #: Averages over the batches, and their variance and covariance.
        self._mean_queries = self._mean_seconds = 0.0
        self._query_variance = self._covariance = 0.0
        #: Mean deviation of a batch from its expected time, as a share of that time.
        self._deviation = 0.0

    def batch_done(self, queries: int, started: float, finished: float) -> None:
        """Record the size of a finished batch, and the times at which it started and finished.

        Stages may overlap, so the duration counts from the end of the previous batch if that is later.
        """
        seconds = finished - max(started, self._last_end)
        if expected := self.expected(queries):
            error = abs(seconds - expected) / expected
            self._deviation += _SCATTER_WEIGHT * (error - self._deviation)
        weight = _AVERAGE_WEIGHT if self._mean_queries else 1.0
        self._last_end = finished
        query_difference, second_difference = queries - self._mean_queries, seconds - self._mean_seconds
        self._mean_queries += weight * query_difference
        self._mean_seconds += weight * second_difference
        self._query_variance = (1 - weight) * (self._query_variance + weight * query_difference**2)
        self._covariance = (1 - weight) * (self._covariance + weight * query_difference * second_difference)

    def expected(self, queries: int) -> float:
        """Return the seconds that this many queries will take in full batches; 0.0 before the first batch."""
        if not (queries and self._mean_queries):
            return 0.0
        average = self._mean_seconds / self._mean_queries
        prior = average / 2
        prior_weight = (self._mean_queries * _PRIOR_SPREAD) ** 2  # a variance: counts less as sizes differ
        slope = (self._covariance + prior_weight * prior) / (self._query_variance + prior_weight)
        slope = min(max(slope, 0.0), average)
        batch_seconds = self._mean_seconds - slope * self._mean_queries
        return self._batch_count(queries) * batch_seconds + queries * slope

    def upper_bound(self, queries: int) -> float:
        """Return the seconds within which these queries are answered in 19 of 20 cases.

        This assumes that batches scatter as they did recently, normally and independently of each other. The
        scatter starts at 0, so after the first few batches the bound is too low.
        """
        scatter = self._deviation * self.expected(min(queries, self._max_batch))
        return self.expected(queries) + _DEVIATIONS * scatter * math.sqrt(self._batch_count(queries))

    def _batch_count(self, queries: int) -> int:
        """Return the number of batches that this many queries need."""
        return math.ceil(queries / self._max_batch)
