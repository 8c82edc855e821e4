"""Cross-request batching: the queries of all requests meet in one line and go through two stages.

    search() --> cache? --> equal query --> BatchFormer --> encode thread --> search thread --> futures
                            under way?     (batching.py)              (work.py)

All bookkeeping happens in the event loop; threads only run the source's stages: one batch is encoded while
the one before it is searched, or, where both would want the same cores, one after the other. The line is
bounded: what does not fit is refused at once (``Overloaded``), never queued without end. A query whose askers
have all gone (client closed, deadline) is taken out of the line; one that is in a stage already is finished,
and cached.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from retrieval_server.engine.batching import BatchFormer, EngineOptions, Pace
from retrieval_server.engine.cache import LRUCache
from retrieval_server.engine.metrics import IndexMetrics
from retrieval_server.engine.work import Answer, Batch, Job, Stages, ask_each, now
from retrieval_server.sources import RemoteSource, Source, StagedSource

log = logging.getLogger(__name__)
#: How often an engine that is being drained looks whether it has finished.
_LOOK_AGAIN_S = 0.02
#: Turns of the event loop within which a request that has arrived at the socket reaches the line.
_TURNS_TO_READ = 3


class Overloaded(Exception):
    """The request was refused; ``retry_after`` is in whole seconds, ``reason`` a metrics label."""

    def __init__(self, reason: str, message: str, retry_after: int):
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Engine:
    """Answers queries from a source that it loads itself. Belongs to the event loop that runs ``load``."""

    def __init__(self, options: EngineOptions, metrics: IndexMetrics):
        self.options = options
        self.source: Source | None = None
        self._metrics = metrics
        self._former: BatchFormer[Job] = BatchFormer(options.max_batch, options.max_wait_ms / 1000)
        self._pace = Pace(options.max_batch)
        self._cache: LRUCache[Answer] = LRUCache(options.cache_size)
        self._in_flight: dict[tuple[str, int], Job] = {}
        self._outstanding = 0
        self._stages = Stages()
        self._tasks: list[asyncio.Task] = []
        self._wakes: set[asyncio.Future[None]] = set()
        self._searches = 0

    @property
    def queue_length(self) -> int:
        """Queries that wait for the encoder."""
        return len(self._former)

    @property
    def outstanding(self) -> int:
        """Queries accepted and not yet answered."""
        return self._outstanding

    @property
    def cache_entries(self) -> int:
        return len(self._cache)

    async def load(self, load: Callable[[], Source]) -> None:
        """Load and warm up in the thread that will encode, and start the work on the line."""
        source = await self._stages.load(load)
        if isinstance(source, RemoteSource):
            self._former, self._pace = BatchFormer(max_batch=1, max_wait_s=0.0), Pace(max_batch=1)
            work = [ask_each(self, source)]
        else:
            try:
                await self._stages.load(source.warm_up)
            except Exception:
                source.close()
                raise
            overlap = source.overlaps if self.options.overlap is None else self.options.overlap
            work = self._stages.work(self, source, overlap)
        self._tasks = [asyncio.create_task(coroutine) for coroutine in work]
        self.source = source

    async def drain(self) -> None:
        """Returns when everything that was asked has been answered; the caller asks no more."""
        while self._searches or self._outstanding:
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def stop(self) -> None:
        """End all work. What is still under way fails; the app has answered its requests before this."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self.source, RemoteSource):
            await self.source.close()
        self._stages.end()
        if isinstance(self.source, StagedSource):
            await asyncio.to_thread(self.source.close)

    async def search(self, queries: Sequence[str], topk: int) -> list[Answer]:
        """At most ``topk`` documents a query, in the queries' order; a blank query finds none.

        Raises Overloaded at once where the line is full or too slow, and what the backend raised. Cancelling
        takes back the queries that nobody else waits for.
        """
        self._searches += 1
        try:
            return await self._search(queries, topk)
        finally:
            self._searches -= 1

    async def _search(self, queries: Sequence[str], topk: int) -> list[Answer]:
        waits: list[Answer | Job] = []
        joined: set[Job] = set()
        fresh: list[Job] = []
        asked = cached = 0
        loop = asyncio.get_running_loop()
        for query in queries:
            if not query.strip():
                waits.append(())
                continue
            asked += 1
            key = (query, topk)
            if self._cache.size and (answer := self._cache.get(key)) is not None:
                cached += 1
                waits.append(answer)
                continue
            job = self._in_flight.get(key) if self.options.single_flight else None
            if job is None:
                job = Job(query, topk, loop.create_future())
                fresh.append(job)
                if self.options.single_flight:
                    self._in_flight[key] = job
            joined.add(job)
            waits.append(job)
        try:
            self._admit(len(fresh))
        except Overloaded:
            for job in fresh:
                self._forget(job)
            raise
        self._metrics.queries.inc(asked)
        self._metrics.cache_hits.inc(cached)
        self._metrics.joined.inc(asked - cached - len(fresh))
        self._enter(fresh)
        for job in joined:
            job.askers += 1
        try:
            if joined:
                await asyncio.wait([job.future for job in joined])
        finally:
            self._leave(joined)
        return [wait.future.result() if isinstance(wait, Job) else wait for wait in waits]

    def refuses(self) -> Overloaded | None:
        """Why one more query would be refused at this moment, or None."""
        try:
            self._admit(1)
        except Overloaded as error:
            return error
        return None

    def _admit(self, queries: int) -> None:
        if not queries:
            return
        total = self._outstanding + queries
        retry_after = max(1, math.ceil(self._pace.seconds_for(self._outstanding)))
        if total > self.options.max_queue:
            message = f"{self._outstanding} queries under way, at most {self.options.max_queue}"
            raise Overloaded("queue_full", message, retry_after)
        if not self._outstanding:
            return  # whoever finds an idle server is taken, however long it may take
        seconds = self._pace.seconds_for(total)
        if seconds > self.options.deadline_s:
            message = f"the answer would take {seconds:.0f} s; the deadline is {self.options.deadline_s:g} s"
            raise Overloaded("deadline", message, retry_after)
        most = self.options.max_delay_s
        if most is not None and seconds > most:
            message = f"the answer would take {seconds:.1f} s; a request takes {most:g} s at most"
            raise Overloaded("delay", message, retry_after)

    def _enter(self, fresh: list[Job]) -> None:
        request = object()
        for job in fresh:
            self._former.add(job, job.arrived, request)
        self._outstanding += len(fresh)
        self._rouse()

    def _leave(self, jobs: set[Job]) -> None:
        for job in jobs:
            job.askers -= 1
            if job.askers == 0 and not job.future.done() and self._former.remove(job):
                self._metrics.dropped.inc()
                self._outstanding -= 1
                self._forget(job)

    def _forget(self, job: Job) -> None:
        key = (job.query, job.topk)
        if self._in_flight.get(key) is job:
            del self._in_flight[key]

    def _rouse(self) -> None:
        for wake in self._wakes:
            if not wake.done():
                wake.set_result(None)

    def _due_in(self, free_since: float) -> float | None:
        under_way = self._outstanding - len(self._former)
        return self._former.due_in(now(), free_since, under_way)

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        free_since = now()
        while True:
            seconds = self._due_in(free_since)
            if seconds == 0.0:
                # The loop may have been busy with answers while others asked: read before the batch is cut.
                for _ in range(_TURNS_TO_READ):
                    await asyncio.sleep(0)
                if self._due_in(free_since) == 0.0:
                    return
                continue
            wake = loop.create_future()
            self._wakes.add(wake)
            timer = None if seconds is None else loop.call_later(seconds, self._rouse)
            try:
                await wake
            finally:
                self._wakes.discard(wake)
                if timer is not None:
                    timer.cancel()

    # What work.py calls, all in the event loop.

    async def next_batch(self) -> Batch:
        """The next batch, when it is due."""
        await self._until_due()
        batch = Batch(self._former.take(), now())
        self._metrics.batch_size.observe(len(batch.jobs))
        for job in batch.jobs:
            self._metrics.stage_seconds["queue"].observe(batch.started - job.arrived)
        return batch

    def answered(self, batch: Batch, answers: Sequence[Answer]) -> None:
        self._pace.batch_done(len(batch.jobs), batch.started, now())
        self._former.saw(self._outstanding)
        for job, answer in zip(batch.jobs, answers, strict=True):
            self._cache.put((job.query, job.topk), answer)
            self._done(job)
            job.future.set_result(answer)

    def took(self, stage: str, seconds: float) -> None:
        self._metrics.stage_seconds[stage].observe(seconds)

    def failed(self, batch: Batch, error: Exception) -> None:
        if len(batch.jobs) > 1:
            log.warning("a batch of %d queries failed; trying each alone", len(batch.jobs), exc_info=error)
            self._former.add_suspects(batch.jobs)
            self._rouse()
            return
        (job,) = batch.jobs
        self._done(job)
        job.future.set_exception(error)
        job.future.exception()  # mark as seen: its askers may all have gone

    def _done(self, job: Job) -> None:
        self._outstanding -= 1
        self._forget(job)
