"""The Prometheus metrics of the server, which `GET /metrics` shows.

Each app has a registry, so that two apps can share a process. A query in `queries` is answered from the cache
(`cache_hits`), joins an equal one (`joined`), is dropped (`dropped`), or is passed to the source in a batch
(`batch_size`). A query of a failed batch, which is tried again alone, is in two batches. Instruments of an
index have its name as the label `index`, which `Metrics.of(name)` fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["CONTENT_TYPE", "IndexMetrics", "Metrics"]

Kind = TypeVar("Kind", Counter, Gauge, Histogram)

#: The upper bounds of the buckets of histograms: of seconds, and of queries in a batch.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_INDEX = ("index",)


class Metrics:
    """All instruments of the server, named `retrieval_*`, and those of the process, named `process_*`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # memory, CPU time and open files

        def add(kind: type[Kind], name: str, text: str, labels: Sequence[str], **options: Any) -> Kind:
            return kind(f"retrieval_{name}", text, labels, registry=self._registry, **options)

        self.requests = add(Counter, "requests", "Requests answered.", ("route", "status"))
        self.request_seconds = add(
            Histogram, "request_seconds", "From the first byte to the answer.", ("route",), buckets=_SECONDS
        )
        self.rejections = add(
            Counter,
            "rejections",
            "Requests refused or given up. deadline: it passed, or might have; delay: --max-delay.",
            ("index", "reason"),
        )
        self.queries = add(Counter, "queries", "Queries of accepted requests, less blank ones.", _INDEX)
        self.cache_hits = add(Counter, "cache_hits", "Queries answered from the cache.", _INDEX)
        self.joined = add(Counter, "joined", "Queries that joined an equal query under way.", _INDEX)
        self.dropped = add(Counter, "dropped", "Queued queries whose clients all went away.", _INDEX)
        self.batch_size = add(Histogram, "batch_size", "Queries in a batch.", _INDEX, buckets=_SIZES)
        self.stage_seconds = add(
            Histogram,
            "stage_seconds",
            "queue: a query's wait for the encoder; encode and search: a batch's time in that stage.",
            ("index", "stage"),
            buckets=_SECONDS,
        )
        self.gauges = {
            "queue_length": add(Gauge, "queue_length", "Queries that wait for the encoder.", _INDEX),
            "outstanding": add(Gauge, "outstanding", "Queries accepted and not yet answered.", _INDEX),
            "cache_entries": add(Gauge, "cache_entries", "Answers in the cache.", _INDEX),
            "index_version": add(Gauge, "index_version", "1 at start, one more with each reload.", _INDEX),
        }
        self.reloads = add(Counter, "reloads", "Reloads of an index.", ("index", "outcome"))

    def of(self, index: str) -> IndexMetrics:
        """Return the instruments of one index."""
        return IndexMetrics(self, index)

    def page(self) -> bytes:
        """Return the page `GET /metrics` in Prometheus' text format, whose content type is `CONTENT_TYPE`."""
        return generate_latest(self._registry)


class IndexMetrics:
    """The instruments of one index, with its name as a label.

    Creating them puts the public ones on the page, at 0. A gauge appears there with its `watch`, and reloads
    when the first one is counted.
    """

    def __init__(self, metrics: Metrics, index: str):
        self._metrics, self._index = metrics, index
        self.queries = metrics.queries.labels(index)
        self.cache_hits = metrics.cache_hits.labels(index)
        self.joined = metrics.joined.labels(index)
        self.dropped = metrics.dropped.labels(index)
        self.batch_size = metrics.batch_size.labels(index)
        self.stage_seconds = {
            stage: metrics.stage_seconds.labels(index, stage) for stage in ("queue", "encode", "search")
        }

    def reloaded(self, outcome: Literal["done", "failed"]) -> None:
        """Count a reload of the index by its outcome."""
        self._metrics.reloads.labels(self._index, outcome).inc()

    def watch(self, gauge: str, value: Callable[[], float]) -> None:
        """Make a gauge, one of the names in `Metrics.gauges`, call `value` whenever the page is requested."""
        self._metrics.gauges[gauge].labels(self._index).set_function(value)
