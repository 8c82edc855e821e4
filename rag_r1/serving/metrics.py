"""The chat server's Prometheus metrics, which `GET /metrics` returns. Each app has its own registry."""

from __future__ import annotations

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from rag_r1.agent import Trajectory
from rag_r1.serving.admission import AdmissionQueue

#: Upper bounds of the histograms' buckets, in seconds.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class ChatMetrics:
    """The metrics of a chat server, which are named `chat_*`, and those of its process."""

    def __init__(self, admission: AdmissionQueue) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def add(kind: type[Metric], name: str, text: str, *labels: str, **options: Any) -> Metric:
            """Return a new metric of this server. `text` describes it."""
            return kind(f"chat_{name}", text, labels, registry=self._registry, **options)

        self.ended = add(Counter, "ended", "Chats that ran to an end, by how they ended.", "status")
        self.abandoned = add(Counter, "abandoned", "Chats whose client went away.")
        self.refused = add(Counter, "refused", "Requests that were refused.", "reason")
        self.seconds = add(Histogram, "seconds", "Seconds from admission to the end.", buckets=_SECONDS)
        self.wait = add(Histogram, "wait_seconds", "Seconds from the request to admission.", buckets=_SECONDS)
        self.searches = add(Counter, "searches", "Queries of ended chats.")
        self.tokens = add(Counter, "tokens", "Tokens of ended chats.", "kind")
        add(Gauge, "running", "Chats that are running.").set_function(lambda: admission.running)
        add(Gauge, "waiting", "Chats that wait for a slot.").set_function(lambda: admission.waiting)

    def count_chat(self, trajectory: Trajectory) -> None:
        """Count a chat that has ended, with its status, seconds, searches and tokens."""
        self.ended.labels(trajectory.status).inc()
        self.seconds.observe(trajectory.seconds)
        self.searches.inc(trajectory.n_searches)
        self.tokens.labels("generated").inc(trajectory.generated_tokens)
        self.tokens.labels("observed").inc(trajectory.observed_tokens)

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format, whose type is `CONTENT_TYPE_LATEST`."""
        return generate_latest(self._registry)
