"""The engine: batches the queries of all requests and searches them together.

    search() --> cached? --> same query under way? --> JobQueue --> runner: threads, or the event loop
       ^                                            (job_queue.py)  (runners.py)     |
       +---------------- the jobs' futures <-------- deliver <-----------------------+

All bookkeeping happens in the event loop; threads only run the source's stages. The queue is bounded: a
request that does not fit is refused at once with `OverloadedError`. A query is withdrawn from the queue when
no client waits for it any more, because connections were closed or deadlines have passed. A query that is
already being searched is finished and its answer cached.
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
    """Answers queries from a source. Create it with `start`, in the event loop to which it then belongs."""

    def __init__(self, source: Source, stages: StageThreads, options: EngineOptions, metrics: IndexMetrics):
        self.source = source
        self._stages, self._options, self._metrics = stages, options, metrics
        self._cache: LRUCache[tuple[str, int], Answer] = LRUCache(options.cache_size)
        self._in_flight: dict[tuple[str, int], QueryJob] = {}
        self._searches = 0
        self._stopping: asyncio.Task[None] | None = None
        runner: RemoteRunner | StagedRunner
        if isinstance(source, RemoteSource):  # batches would make fast queries wait for slow ones
            self._queue = JobQueue(max_batch=1, max_wait_s=0.0)
            self._latency = LatencyModel(max_batch=1)
            runner = RemoteRunner(source, self._queue.next_batch, self._deliver)
        else:
            self._queue = JobQueue(options.max_batch, options.max_wait_ms / 1000)
            self._latency = LatencyModel(options.max_batch)
            overlap = source.overlaps if options.overlap is None else options.overlap
            runner = StagedRunner(source, stages, self._queue.next_batch, self._deliver, overlap)
        self._tasks = [asyncio.create_task(coroutine) for coroutine in runner.work()]

    @classmethod
    async def start(cls, load: Callable[[], Source], options: EngineOptions, metrics: IndexMetrics) -> Engine:
        """Load a source, warm it up in the thread that will encode, and start to process the queue.

        Errors of `load` and `warm_up` are passed on; all threads have ended by then. A staged source
        that was opened is closed then, also if the call is cancelled.
        """
        stages = StageThreads()
        opened: list[Source] = []

        def open_warm() -> None:
            opened.append(load())
            if isinstance(opened[0], StagedSource):
                opened[0].warm_up()

        try:
            await stages.run_encoding(open_warm)
        except BaseException:
            stages.end()  # returns when `open_warm` has, even if nobody waits for it any more
            for source in opened:
                if isinstance(source, StagedSource):
                    source.close()
            raise
        return cls(opened[0], stages, options, metrics)

    @property
    def queue_length(self) -> int:
        """The number of queries that are waiting for the encoder."""
        return len(self._queue)

    @property
    def outstanding(self) -> int:
        """The number of queries that are accepted and not yet answered."""
        return self._queue.unanswered

    @property
    def cache_entries(self) -> int:
        """The number of answers in the cache."""
        return len(self._cache)

    async def drain(self) -> None:
        """Return when all queries have been answered. The caller must not send any more."""
        while self._searches or self.outstanding:
            await asyncio.sleep(_DRAIN_CHECK_S)

    async def stop(self) -> None:
        """Stop all work and close the source.

        Queries that are still under way are never answered, so the app must have answered its requests. This
        happens once: a later call waits for the end of the first, also if that one was cancelled.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        """Stop as `stop` does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self.source, RemoteSource):
            await self.source.close()
        self._stages.end()
        if isinstance(self.source, StagedSource):
            await asyncio.to_thread(self.source.close)

    async def search(self, queries: Sequence[str], topk: int) -> list[Answer]:
        """Return at most `topk` documents for each query, in the order of the queries.

        A blank query has none. Raises OverloadedError at once if the queue is full or too slow, and passes on
        errors of the source. Cancelling the call withdraws the queries for which no other request is waiting.
        """
        self._searches += 1
        try:
            return await self._search(queries, topk)
        finally:
            self._searches -= 1

    async def _search(self, queries: Sequence[str], topk: int) -> list[Answer]:
        """Search as `search` does. Each query is blank, cached, equal to one under way, or a new job."""
        results: list[Answer | QueryJob] = []  # an answer, or the job that will have it
        jobs: set[QueryJob] = set()
        new_jobs: list[QueryJob] = []
        searched = cached = 0
        loop = asyncio.get_running_loop()
        for query in queries:
            if not query.strip():
                results.append(())
                continue
            searched += 1
            key = (query, topk)
            if (answer := self._cache.get(key)) is not None:
                cached += 1
                results.append(answer)
                continue
            job = self._in_flight.get(key)
            if job is None:
                job = QueryJob(query, topk, loop.create_future())
                new_jobs.append(job)
                if self._options.single_flight:
                    self._in_flight[key] = job
            jobs.add(job)
            results.append(job)
        if (refusal := self.refusal(len(new_jobs))) is not None:
            for job in new_jobs:
                self._forget(job)
            raise refusal
        self._metrics.queries.inc(searched)
        self._metrics.cache_hits.inc(cached)
        self._metrics.joined.inc(searched - cached - len(new_jobs))
        await self._wait_for_answers(new_jobs, jobs)
        return [result.future.result() if isinstance(result, QueryJob) else result for result in results]

    async def _wait_for_answers(self, new_jobs: list[QueryJob], jobs: set[QueryJob]) -> None:
        """Put `new_jobs` into the queue and return when all `jobs`, which include them, are answered."""
        self._queue.add(new_jobs)
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
        """Return the error with which this many more queries would be refused now, or None if accepted."""
        if not queries:
            return None
        outstanding = self.outstanding
        options = self._options
        total = outstanding + queries
        retry_after = max(1, math.ceil(self._latency.expected(outstanding)))
        if total > options.max_queue:
            message = f"{outstanding} queries under way, at most {options.max_queue}"
            return OverloadedError("queue_full", message, retry_after)
        if not outstanding:
            return None  # an idle server accepts a request however long it may take
        seconds = self._latency.upper_bound(total)
        if seconds > options.deadline_s:
            message = f"the answer could take {seconds:.0f} s; the deadline is {options.deadline_s:g} s"
            return OverloadedError("deadline", message, retry_after)
        max_delay_s = options.max_delay_s
        if max_delay_s is not None and seconds > max_delay_s:
            message = f"the answer could take {seconds:.2f} s; --max-delay is {max_delay_s:g} s"
            return OverloadedError("delay", message, retry_after)
        return None

    def _deliver(self, batch: JobBatch) -> None:
        """Pass the answers, or the error, of a finished batch to its jobs."""
        self._metrics.batch_size.observe(len(batch.jobs))
        for job in batch.jobs:
            self._metrics.stage_seconds["queue"].observe(batch.started - job.arrived)
        for stage, seconds in batch.seconds.items():
            self._metrics.stage_seconds[stage].observe(seconds)
        if batch.answers is not None:
            self._set_answers(batch, batch.answers)
        else:
            assert batch.error is not None  # a runner sets either the answers or the error
            self._fail(batch, batch.error)

    def _set_answers(self, batch: JobBatch, answers: Sequence[Answer]) -> None:
        """Answer the jobs of a batch and cache the answers."""
        self._latency.batch_done(len(batch.jobs), batch.started, now())
        self._queue.batch_done()
        for job, answer in zip(batch.jobs, answers, strict=True):
            if self._cache.maxsize:
                self._cache[job.query, job.topk] = answer
            self._queue.job_done()
            self._forget(job)
            job.future.set_result(answer)

    def _fail(self, batch: JobBatch, error: Exception) -> None:
        """Retry the queries of a failed batch one by one. A batch of one query gets the error."""
        if len(batch.jobs) > 1:
            log.warning("a batch of %d queries failed; trying each alone", len(batch.jobs), exc_info=error)
            self._queue.retry_alone(batch.jobs)
            return
        (job,) = batch.jobs
        self._queue.job_done()
        self._forget(job)
        job.future.set_exception(error)
        job.future.exception()  # mark it as retrieved: possibly no request waits for it any more

    def _forget(self, job: QueryJob) -> None:
        """Stop further queries from joining the job."""
        key = (job.query, job.topk)
        if self._in_flight.get(key) is job:
            del self._in_flight[key]
