"""The errors that a request can end with, each with a status and a reason."""

from __future__ import annotations

from retrieval_server.engine.metrics import Metrics
from retrieval_server.errors import RequestError


class RequestErrors:
    """Makes refusals, and counts each in the metrics."""

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
        """A refusal, to be raised or sent now. `index` and `metric` (None: `error`) are labels."""
        self._metrics.rejections.labels(index or "", metric or error).inc()
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        return RequestError(status, error, reason, headers)
