"""Cross-request batching: the queries of all requests meet in one line and go through two stages.

    search() --> cache? --> equal query --> BatchFormer --> encode thread --> search thread --> futures
                            under way?     (batching.py)   (one batch ahead)

All bookkeeping happens in the event loop; the two threads only run ``StagedSource.prepare`` and ``find``, one
batch each, so one batch is encoded while the one before it is searched. A ``RemoteSource`` (sources.py) is
asked in the event loop instead, each query on its own. The line is bounded: what does not fit is refused at
once (``Overloaded``), never queued without end. A query whose askers have all gone (client closed, deadline)
is taken out of the line; one that is in a stage already is finished, and cached.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from retrieval_server.batching import BatchFormer, EngineOptions, Pace
from retrieval_server.cache import LRUCache
from retrieval_server.metrics import IndexMetrics
from retrieval_server.sources import RemoteSource, Retrieved, Source, StagedSource

log = logging.getLogger(__name__)
_now = time.monotonic
Answer = Sequence[Retrieved]
Made = TypeVar("Made")
#: How often an engine that is being drained looks whether it has finished.
_LOOK_AGAIN_S = 0.02


class Overloaded(Exception):
    """The request was refused; ``retry_after`` is in whole seconds, ``reason`` a metrics label."""

    def __init__(self, reason: str, message: str, retry_after: int):
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class _Job:
    """One query on its way; compared by identity."""

    def __init__(self, query: str, topk: int, future: asyncio.Future[Answer]):
        self.query, self.topk, self.future = query, topk, future
        self.arrived = _now()
        self.askers = 0


@dataclass
class _Batch:
    jobs: list[_Job]
    started: float
    prepared: Any = None


class Engine:
    """Answers queries from a source that it loads itself. Belongs to the event loop that runs ``load``."""

    def __init__(self, options: EngineOptions, metrics: IndexMetrics):
        self.options = options
        self.source: Source | None = None
        self._metrics = metrics
        self._former: BatchFormer[_Job] = BatchFormer(options.max_batch, options.max_wait_ms / 1000)
        self._pace = Pace()
        self._cache: LRUCache[Answer] = LRUCache(options.cache_size)
        self._in_flight: dict[tuple[str, int], _Job] = {}
        self._outstanding = 0
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._tasks: list[asyncio.Task] = []
        self._wake: asyncio.Future[None] | None = None
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
        loop = asyncio.get_running_loop()
        source = await loop.run_in_executor(self._encoding, load)
        if isinstance(source, RemoteSource):
            self._former = BatchFormer(max_batch=1, max_wait_s=0.0)
            stages = [self._ask_each(source)]
        else:
            try:
                await loop.run_in_executor(self._encoding, source.warm_up)
            except Exception:
                source.close()
                raise
            handed: asyncio.Queue[_Batch] = asyncio.Queue(maxsize=1)
            stages = [self._encode_batches(source, handed), self._search_batches(source, handed)]
        self._tasks = [asyncio.create_task(stage) for stage in stages]
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
        for thread in (self._encoding, self._searching):
            thread.shutdown(wait=True, cancel_futures=True)
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
        waits: list[Answer | _Job] = []
        joined: set[_Job] = set()
        fresh: list[_Job] = []
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
                job = _Job(query, topk, loop.create_future())
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
        return [wait.future.result() if isinstance(wait, _Job) else wait for wait in waits]

    def _admit(self, queries: int) -> None:
        total = self._outstanding + queries
        seconds = self._pace.seconds_for(self._outstanding)
        retry_after = max(1, math.ceil(seconds))
        if queries and total > self.options.max_queue:
            message = f"{self._outstanding} queries under way, at most {self.options.max_queue}"
            raise Overloaded("queue_full", message, retry_after)
        if queries and seconds > self.options.deadline_s:
            message = f"queries under way take {seconds:.0f} s; the deadline is {self.options.deadline_s:g} s"
            raise Overloaded("deadline", message, retry_after)

    def _enter(self, fresh: list[_Job]) -> None:
        request = object()
        for job in fresh:
            self._former.add(job, job.arrived, request)
        self._outstanding += len(fresh)
        self._rouse()

    def _leave(self, jobs: set[_Job]) -> None:
        for job in jobs:
            job.askers -= 1
            if job.askers == 0 and not job.future.done() and self._former.remove(job):
                self._metrics.dropped.inc()
                self._outstanding -= 1
                self._forget(job)

    def _forget(self, job: _Job) -> None:
        key = (job.query, job.topk)
        if self._in_flight.get(key) is job:
            del self._in_flight[key]

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while (seconds := self._former.due_in(_now())) != 0.0:
            self._wake = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, self._rouse)
            try:
                await self._wake
            finally:
                if timer is not None:
                    timer.cancel()

    async def _next_batch(self) -> _Batch:
        await self._until_due()
        batch = _Batch(self._former.take(), _now())
        self._metrics.batch_size.observe(len(batch.jobs))
        for job in batch.jobs:
            self._metrics.stage_seconds["queue"].observe(batch.started - job.arrived)
        return batch

    async def _encode_batches(self, source: StagedSource, handed: asyncio.Queue[_Batch]) -> None:
        while True:
            batch = await self._next_batch()
            try:
                queries = [job.query for job in batch.jobs]
                batch.prepared = await self._run("encode", self._encoding, source.prepare, queries)
            except Exception as error:
                self._failed(batch, error)
            else:
                await handed.put(batch)

    async def _search_batches(self, source: StagedSource, handed: asyncio.Queue[_Batch]) -> None:
        while True:
            batch = await handed.get()
            try:
                topks = [job.topk for job in batch.jobs]
                answers = await self._run("search", self._searching, source.find, batch.prepared, topks)
            except Exception as error:
                self._failed(batch, error)
            else:
                self._answered(batch, answers)

    async def _ask_each(self, source: RemoteSource) -> None:
        free = asyncio.Semaphore(source.concurrency)
        under_way: set[asyncio.Task] = set()

        async def ask(batch: _Batch) -> None:
            (job,) = batch.jobs
            try:
                answer = await source.answer(job.query, job.topk)
            except Exception as error:
                self._failed(batch, error)
            else:
                self._metrics.stage_seconds["search"].observe(_now() - batch.started)
                self._answered(batch, [answer])
            finally:
                free.release()

        try:
            while True:
                await free.acquire()  # first, so that who waits for it can still leave the line
                task = asyncio.create_task(ask(await self._next_batch()))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _answered(self, batch: _Batch, answers: Sequence[Answer]) -> None:
        self._pace.batch_done(len(batch.jobs), batch.started, _now())
        for job, answer in zip(batch.jobs, answers, strict=True):
            self._cache.put((job.query, job.topk), answer)
            self._done(job)
            job.future.set_result(answer)

    async def _run(self, stage: str, thread: ThreadPoolExecutor, work: Callable[..., Made], *args) -> Made:
        started = _now()
        made = await asyncio.get_running_loop().run_in_executor(thread, work, *args)
        self._metrics.stage_seconds[stage].observe(_now() - started)
        return made

    def _failed(self, batch: _Batch, error: Exception) -> None:
        if len(batch.jobs) > 1:
            log.warning("a batch of %d queries failed; trying each alone", len(batch.jobs), exc_info=error)
            self._former.add_suspects(batch.jobs)
            self._rouse()
            return
        (job,) = batch.jobs
        self._done(job)
        job.future.set_exception(error)
        job.future.exception()  # mark as seen: its askers may all have gone

    def _done(self, job: _Job) -> None:
        self._outstanding -= 1
        self._forget(job)
