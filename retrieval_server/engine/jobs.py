"""The jobs of the engine, one for each query, and the batches that they form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from retrieval_server.source import ScoredPassage

#: The engine's clock, in seconds.
now = time.monotonic
#: The documents found for one query, best first.
Answer = Sequence[ScoredPassage]


class QueryJob:
    """One query in the engine; compared by identity. `waiting_requests` counts those that wait for it."""

    __slots__ = ("query", "topk", "future", "arrived", "waiting_requests")

    def __init__(self, query: str, topk: int, future: asyncio.Future[Answer]):
        self.query, self.topk, self.future = query, topk, future
        self.arrived = now()
        self.waiting_requests = 0


@dataclass
class JobBatch:
    """Jobs that are searched together, and their `answers`, one for each job, or the `error` of all.

    `started` is a time of `now`; `seconds` is the time spent in each stage that was completed.
    """

    jobs: list[QueryJob]
    started: float
    answers: Sequence[Answer] | None = None
    error: Exception | None = None
    seconds: dict[str, float] = field(default_factory=dict)
