"""The engine: batches the queries of all requests and searches them together.

    search() --> cached? --> same query under way? --> JobQueue --> runner: threads, or the event loop
       ^                                            (job_queue.py)  (runners.py)     |
       +---------------- the jobs' futures <-------- deliver <-----------------------+

All bookkeeping happens in the event loop; threads only run the source's stages. The queue is bounded: what
does not fit is refused at once (`OverloadedError`), never queued without end. A query whose clients have
all gone (connection closed, deadline) is taken out of the queue; one that is being searched is finished, and
cached.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from cachetools import LRUCache

from retrieval_server.engine.job_queue import JobQueue
from retrieval_server.engine.jobs import Answer, JobBatch, QueryJob, now
from retrieval_server.engine.latency_model import LatencyModel
from retrieval_server.engine.metrics import IndexMetrics
from retrieval_server.engine.options import EngineOptions
from retrieval_server.engine.runners import RemoteRunner, StagedRunner, StageThreads
from retrieval_server.errors import OverloadedError
from retrieval_server.source import RemoteSource, Source, StagedSource

log = logging.getLogger(__name__)
#: Seconds between two checks of whether an engine that is being drained has finished.
_DRAIN_CHECK_S = 0.02


class Engine:
    """Answers queries from a source; `start` makes it, in the event loop to which it then belongs."""

    def __init__(self, source: Source, stages: StageThreads, options: EngineOptions, metrics: IndexMetrics):
        self.source = source
        self._stages, self._options, self._metrics = stages, options, metrics
        self._cache: LRUCache[tuple[str, int], Answer] = LRUCache(options.cache_size)
        self._in_flight: dict[tuple[str, int], QueryJob] = {}
        self._searches = 0
        runner: RemoteRunner | StagedRunner
        if isinstance(source, RemoteSource):  # batches would make fast queries wait for slow ones
            self._queue = JobQueue(max_batch=1, max_wait_s=0.0)
            self._pace = LatencyModel(max_batch=1)
            runner = RemoteRunner(source, self._queue.next_batch, self._deliver)
        else:
            self._queue = JobQueue(options.max_batch, options.max_wait_ms / 1000)
            self._pace = LatencyModel(options.max_batch)
            overlap = source.overlaps if options.overlap is None else options.overlap
            runner = StagedRunner(source, stages, self._queue.next_batch, self._deliver, overlap)
        self._tasks = [asyncio.create_task(coroutine) for coroutine in runner.work()]

    @classmethod
    async def start(cls, load: Callable[[], Source], options: EngineOptions, metrics: IndexMetrics) -> Engine:
        """Load a source and warm it up in the thread that will encode, and start to work on the queue.

        Raises what `load` and `warm_up` raise; then no thread is left.
        """
        stages = StageThreads()
        try:
            source = await stages.run_encoding(load)
            if isinstance(source, StagedSource):
                try:
                    await stages.run_encoding(source.warm_up)
                except Exception:
                    source.close()
                    raise
        except BaseException:
            stages.end()
            raise
        return cls(source, stages, options, metrics)

    @property
    def queue_length(self) -> int:
        """The number of queries that wait for the encoder."""
        return len(self._queue)

    @property
    def outstanding(self) -> int:
        """The number of queries accepted and not yet answered."""
        return self._queue.unanswered

    @property
    def cache_entries(self) -> int:
        """The number of answers in the cache."""
        return len(self._cache)

    async def drain(self) -> None:
        """Return when all queries have been answered; the caller sends no more."""
        while self._searches or self.outstanding:
            await asyncio.sleep(_DRAIN_CHECK_S)

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
        """Returns at most `topk` documents a query, in the queries' order; a blank query finds none.

        Raises OverloadedError at once if the queue is full or too slow, and what the source raised.
        Cancelling takes back the queries that no other request waits for.
        """
        self._searches += 1
        try:
            return await self._search(queries, topk)
        finally:
            self._searches -= 1

    async def _search(self, queries: Sequence[str], topk: int) -> list[Answer]:
        """As `search`: each query is blank, cached, equal to one under way, or a new job."""
        waits: list[Answer | QueryJob] = []
        awaited: set[QueryJob] = set()
        fresh: list[QueryJob] = []
        searched = cached = 0
        loop = asyncio.get_running_loop()
        for query in queries:
            if not query.strip():
                waits.append(())
                continue
            searched += 1
            key = (query, topk)
            if (answer := self._cache.get(key)) is not None:
                cached += 1
                waits.append(answer)
                continue
            job = self._in_flight.get(key)
            if job is None:
                job = QueryJob(query, topk, loop.create_future())
                fresh.append(job)
                if self._options.single_flight:
                    self._in_flight[key] = job
            awaited.add(job)
            waits.append(job)
        if (refusal := self.refusal(len(fresh))) is not None:
            for job in fresh:
                self._forget(job)
            raise refusal
        self._metrics.queries.inc(searched)
        self._metrics.cache_hits.inc(cached)
        self._metrics.joined.inc(searched - cached - len(fresh))
        await self._wait_for_answers(fresh, awaited)
        return [wait.future.result() if isinstance(wait, QueryJob) else wait for wait in waits]

    async def _wait_for_answers(self, fresh: list[QueryJob], jobs: set[QueryJob]) -> None:
        """Put the `fresh` jobs into the queue; return when all `jobs`, they among them, are answered."""
        self._queue.add(fresh)
        for job in jobs:
            job.waiting_requests += 1
        try:
            if jobs:
                await asyncio.wait([job.future for job in jobs])
        finally:
            for job in jobs:
                job.waiting_requests -= 1
                if job.waiting_requests == 0 and not job.future.done() and self._queue.withdraw(job):
                    self._metrics.dropped.inc()
                    self._forget(job)

    def refusal(self, queries: int = 1) -> OverloadedError | None:
        """The error with which so many more queries would be refused now; None if they would be accepted."""
        if not queries:
            return None
        outstanding = self.outstanding
        options = self._options
        total = outstanding + queries
        retry_after = max(1, math.ceil(self._pace.expected(outstanding)))
        if total > options.max_queue:
            message = f"{outstanding} queries under way, at most {options.max_queue}"
            return OverloadedError("queue_full", message, retry_after)
        if not outstanding:
            return None  # an idle server accepts a request however long it may take
        seconds = self._pace.upper_bound(total)
        if seconds > options.deadline_s:
            message = f"the answer could take {seconds:.0f} s; the deadline is {options.deadline_s:g} s"
            return OverloadedError("deadline", message, retry_after)
        max_delay_s = options.max_delay_s
        if max_delay_s is not None and seconds > max_delay_s:
            message = f"the answer could take {seconds:.2f} s; --max-delay is {max_delay_s:g} s"
            return OverloadedError("delay", message, retry_after)
        return None

    def _deliver(self, batch: JobBatch) -> None:
        """Give the jobs of a finished batch their answers, or their error."""
        self._metrics.batch_size.observe(len(batch.jobs))
        for job in batch.jobs:
            self._metrics.stage_seconds["queue"].observe(batch.started - job.arrived)
        for stage, seconds in batch.seconds.items():
            self._metrics.stage_seconds[stage].observe(seconds)
        if batch.answers is not None:
            self._set_answers(batch, batch.answers)
        else:
            assert batch.error is not None  # a runner delivers a batch with one of both
            self._fail(batch, batch.error)

    def _set_answers(self, batch: JobBatch, answers: Sequence[Answer]) -> None:
        """Answer the jobs of a batch, and cache the answers."""
        self._pace.batch_done(len(batch.jobs), batch.started, now())
        self._queue.batch_done()
        for job, answer in zip(batch.jobs, answers, strict=True):
            if self._cache.maxsize:
                self._cache[job.query, job.topk] = answer
            self._queue.job_done()
            self._forget(job)
            job.future.set_result(answer)

    def _fail(self, batch: JobBatch, error: Exception) -> None:
        """Try the queries of a failed batch one by one; a single one gets the error."""
        if len(batch.jobs) > 1:
            log.warning("a batch of %d queries failed; trying each alone", len(batch.jobs), exc_info=error)
            self._queue.retry_alone(batch.jobs)
            return
        (job,) = batch.jobs
        self._queue.job_done()
        self._forget(job)
        job.future.set_exception(error)
        job.future.exception()  # mark as seen: all its requests may have gone

    def _forget(self, job: QueryJob) -> None:
        """Let no further query join the job."""
        key = (job.query, job.topk)
        if self._in_flight.get(key) is job:
            del self._in_flight[key]
