"""The asynchronous queue of waiting jobs. Adding returns at once; taking a batch waits until one is due.

`batching.py` decides when a batch is due and which jobs it contains. This module supplies what that decision
depends on, the event loop's clock and the number of unanswered jobs, and wakes the runners that are waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retrieval_server.engine.batching import BatchFormer
from retrieval_server.engine.jobs import JobBatch, QueryJob, now

#: Cycles of the event loop within which a request that has arrived at the socket reaches the queue.
_READ_CYCLES = 3


class JobQueue:
    """The waiting jobs of one event loop. The limits are explained in `batching.py`."""

    def __init__(self, max_batch: int, max_wait_s: float):
        self._batch_former: BatchFormer[QueryJob] = BatchFormer(max_batch, max_wait_s)
        self._waiters: set[asyncio.Future[None]] = set()
        self._unanswered = 0

    def __len__(self) -> int:
        """The number of jobs that are waiting."""
        return len(self._batch_former)

    @property
    def unanswered(self) -> int:
        """The number of jobs that are waiting or belong to an unfinished batch."""
        return self._unanswered

    def add(self, jobs: Sequence[QueryJob]) -> None:
        """Append the jobs of one request."""
        request = object()
        for job in jobs:
            self._batch_former.add(job, job.arrived, request)
        self._unanswered += len(jobs)
        self._wake()

    def withdraw(self, job: QueryJob) -> bool:
        """Remove a job from the queue. Returns whether it was still waiting."""
        if not self._batch_former.remove(job):
            return False
        self._unanswered -= 1
        return True

    def retry_alone(self, jobs: Sequence[QueryJob]) -> None:
        """Return the jobs of a failed batch to the queue, to be tried one at a time before all others."""
        self._batch_former.add_suspects(list(jobs))
        self._wake()

    def batch_done(self) -> None:
        """Record the load at the end of a batch. Call it while the jobs of the batch still count."""
        self._batch_former.note_unanswered(self._unanswered)

    def job_done(self) -> None:
        """Record that a job of a taken batch has been answered or has failed."""
        self._unanswered -= 1

    async def next_batch(self) -> JobBatch:
        """Return the next batch when it is due. Several callers may wait; each batch goes to one of them."""
        await self._wait_until_due()
        return JobBatch(self._batch_former.take(), now())

    async def _wait_until_due(self) -> None:
        """Return when a batch is due: at once, after some time, or when further queries have arrived."""
        loop = asyncio.get_running_loop()
        free_since = now()
        while True:
            seconds = self._seconds_until_due(free_since)
            if seconds == 0.0:
                # The loop may have been busy with answers: let requests that have arrived join the batch.
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
        """Return the seconds until a batch is due for an encoder that is idle since `free_since`.

        The result is None if no job is waiting.
        """
        under_way = self._unanswered - len(self._batch_former)
        return self._batch_former.seconds_until_due(now(), free_since, under_way)

    def _wake(self) -> None:
        """Make all callers of `next_batch` check again whether a batch is due."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
