"""The queue of waiting jobs. Adding returns at once; taking a batch waits until one is due.

`batching.py` decides when a batch is due and which jobs are in it. This module gives it the event loop's
clock, and the number of jobs that are not answered yet, on which the decision depends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retrieval_server.engine.batching import BatchFormer
from retrieval_server.engine.jobs import JobBatch, QueryJob, now

#: Cycles of the event loop within which a request that has arrived at the socket reaches the queue.
_READ_CYCLES = 3


class JobQueue:
    """The waiting jobs of one event loop; `batching.py` says what the limits mean."""

    def __init__(self, max_batch: int, max_wait_s: float):
        self._former: BatchFormer[QueryJob] = BatchFormer(max_batch, max_wait_s)
        self._waiters: set[asyncio.Future[None]] = set()
        self._unanswered = 0

    def __len__(self) -> int:
        """The number of jobs that wait."""
        return len(self._former)

    @property
    def unanswered(self) -> int:
        """The number of jobs that wait, or are in a batch that is not finished."""
        return self._unanswered

    def add(self, jobs: Sequence[QueryJob]) -> None:
        """Append the jobs of one request."""
        request = object()
        for job in jobs:
            self._former.add(job, job.arrived, request)
        self._unanswered += len(jobs)
        self._wake()

    def withdraw(self, job: QueryJob) -> bool:
        """Take a job out of the queue; False if it no longer waits."""
        if not self._former.remove(job):
            return False
        self._unanswered -= 1
        return True

    def retry_alone(self, jobs: Sequence[QueryJob]) -> None:
        """Put the jobs of a failed batch back, to be tried one at a time before all others."""
        self._former.add_suspects(list(jobs))
        self._wake()

    def batch_done(self) -> None:
        """Tell the decision how many jobs were unanswered; called while those of the batch still count."""
        self._former.note_unanswered(self._unanswered)

    def job_done(self) -> None:
        """A job that was taken has its answer, or its error."""
        self._unanswered -= 1

    async def next_batch(self) -> JobBatch:
        """The next batch, when it is due. Several callers may wait; each batch goes to one of them."""
        await self._wait_until_due()
        return JobBatch(self._former.take(), now())

    async def _wait_until_due(self) -> None:
        """Return when a batch is due: at once, after a time, or when further queries have come."""
        loop = asyncio.get_running_loop()
        free_since = now()
        while True:
            seconds = self._seconds_until_due(free_since)
            if seconds == 0.0:
                # The loop may have been busy with answers: read what has arrived before the batch is cut.
                for _ in range(_READ_CYCLES):
                    await asyncio.sleep(0)
                if self._seconds_until_due(free_since) == 0.0:
                    return
                continue
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = None if seconds is None else loop.call_later(seconds, self._wake)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if timer is not None:
                    timer.cancel()

    def _seconds_until_due(self, free_since: float) -> float | None:
        """Seconds until a batch is due for an encoder idle since `free_since`; None if no job waits."""
        under_way = self._unanswered - len(self._former)
        return self._former.seconds_until_due(now(), free_since, under_way)

    def _wake(self) -> None:
        """Let all callers of `next_batch` look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
