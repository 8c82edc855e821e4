"""Creates the errors with which requests are answered, and counts them in the metric `rejections`."""

from __future__ import annotations

from retrieval_server.engine.metrics import Metrics
from retrieval_server.errors import RequestError


class RequestErrors:
    """Creates the errors of one server's answers, for requests that it refuses or gives up."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics

    def counted(
        self,
        status: int,
        error: str,
        reason: str,
        *,
        index: str | None = None,
        rejection: str | None = None,
        retry_after: int | None = None,
    ) -> RequestError:
        """Count an error and return it; the caller raises or sends it.

        `status`, `error` (a word) and `reason` (a sentence) are those of the answer, and `retry_after`, in
        seconds, is its header. The metric's labels are `index` (None: "") and `rejection` (None: `error`);
        the latter is the label `reason`.
        """
        self._metrics.rejections.labels(index or "", rejection or error).inc()
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        return RequestError(status, error, reason, headers)
