"""The chat server's Prometheus metrics, `GET /metrics`. Each app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from rag_r1.agent import Trajectory
from rag_r1.serving.admission import AdmissionQueue

__all__ = ["CONTENT_TYPE", "ChatMetrics"]

#: Upper bounds of the histograms' buckets, in seconds.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class ChatMetrics:
    """The instruments of a chat server, named `chat_*`, and the process's own."""

    def __init__(self, seats: AdmissionQueue) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def add(cls, name: str, text: str, labels: tuple[str, ...] = (), **options):
            return cls(f"chat_{name}", text, labels, registry=self._registry, **options)

        self.ended = add(Counter, "ended", "Chats that ran to an end, by how they ended.", ("status",))
        self.abandoned = add(Counter, "abandoned", "Chats whose client went away.")
        self.refused = add(Counter, "refused", "Requests that were refused.", ("reason",))
        self.seconds = add(Histogram, "seconds", "From the seat to the end.", buckets=_SECONDS)
        self.wait = add(Histogram, "wait_seconds", "From the request to the seat.", buckets=_SECONDS)
        self.searches = add(Counter, "searches", "Queries of ended chats.")
        self.tokens = add(Counter, "tokens", "Tokens of ended chats.", ("kind",))
        add(Gauge, "running", "Chats that have a seat.").set_function(lambda: seats.running)
        add(Gauge, "waiting", "Chats that wait for a seat.").set_function(lambda: seats.waiting)

    def count_chat(self, trajectory: Trajectory) -> None:
        """Count an ended chat: its ending, seconds, searches and tokens."""
        self.ended.labels(trajectory.status).inc()
        self.seconds.observe(trajectory.seconds)
        self.searches.inc(trajectory.n_searches)
        self.tokens.labels("generated").inc(trajectory.generated_tokens)
        self.tokens.labels("observed").inc(trajectory.observed_tokens)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)
