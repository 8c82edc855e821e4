"""Creates the errors with which requests are refused, and counts them in the metrics."""

from __future__ import annotations

from retrieval_server.engine.metrics import Metrics
from retrieval_server.errors import RequestError


class RequestErrors:
    """Creates the refusals of one server and counts each of them in its metrics."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics

    def refused(
        self,
        status: int,
        error: str,
        reason: str,
        *,
        index: str | None = None,
        metric: str | None = None,
        retry_after: int | None = None,
    ) -> RequestError:
        """Count a refusal and return its error, which the caller raises or sends.

        `index` and `metric` (None: the same as `error`) are the labels of the metric, and `retry_after` is in
        seconds.
        """
        self._metrics.rejections.labels(index or "", metric or error).inc()
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        return RequestError(status, error, reason, headers)
