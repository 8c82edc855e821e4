"""The engine's unit of work: a job for each query, and the batches in which jobs are searched."""

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
    """One query in the engine, compared by identity. Equal queries of several requests share a job."""

    __slots__ = ("query", "topk", "future", "arrived", "waiting_requests")

    def __init__(self, query: str, topk: int, future: asyncio.Future[Answer]):
        self.query, self.topk, self.future = query, topk, future
        self.arrived = now()
        #: The number of requests that are waiting for the answer.
        self.waiting_requests = 0


@dataclass
class JobBatch:
    """Jobs that are searched together. A runner sets either `answers` or `error`."""

    jobs: list[QueryJob]
    #: When the batch was taken from the queue, as a time of `now`.
    started: float
    #: One answer for each job.
    answers: Sequence[Answer] | None = None
    error: Exception | None = None
    #: Seconds spent in each completed stage, by the name of the stage.
    seconds: dict[str, float] = field(default_factory=dict)
