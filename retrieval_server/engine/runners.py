"""Runners take batches from the queue, search them in a source, and deliver the results.

A runner is given two callables, ``next_batch`` and ``deliver``, and knows nothing else of who feeds it. Its
coroutines, from ``work``, run in the event loop until they are cancelled; every batch that is taken is
delivered once, unless that happens first.

``StagedRunner`` runs the stages of a ``StagedSource`` in threads, as many batches at once in each as the
source allows: one for an index in this process, several where other processes do the work. Between the stages
is a queue of as many batches as the second stage runs, so that the first is never far ahead. Where the two
would take the cores from each other, a batch goes through both before the next is taken.

``RemoteRunner`` calls a ``RemoteSource`` in the event loop, for one query at a time and many at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from retrieval_server.engine.jobs import JobBatch, now
from retrieval_server.source import RemoteSource, StagedSource

NextBatch = Callable[[], Awaitable[JobBatch]]
Deliver = Callable[[JobBatch], None]
Work = list[Coroutine[Any, Any, None]]
Made = TypeVar("Made")


class StageThreads:
    """The threads of the two stages. An index is loaded in the one that will encode."""

    def __init__(self) -> None:
        self.encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self.searching = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def load(self, load: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self.encoding, load)

    def widen(self, encoders: int, searchers: int) -> None:
        """Have so many threads for each stage."""
        if encoders > 1 or searchers > 1:
            self.end()
            self.encoding = ThreadPoolExecutor(encoders, thread_name_prefix="encode")
            self.searching = ThreadPoolExecutor(searchers, thread_name_prefix="search")

    def end(self) -> None:
        """Returns when no thread works any more."""
        for threads in (self.encoding, self.searching):
            threads.shutdown(wait=True, cancel_futures=True)


class StagedRunner:
    """Batches through the two stages of a source. With ``overlap`` both stages run at once."""

    def __init__(
        self,
        source: StagedSource,
        stages: StageThreads,
        next_batch: NextBatch,
        deliver: Deliver,
        overlap: bool,
    ):
        self._source, self._stages, self._overlap = source, stages, overlap
        self._next_batch, self._deliver = next_batch, deliver

    def work(self) -> Work:
        """One coroutine for each batch that may be in a stage at a time."""
        if not self._overlap:
            return [self._encode_and_search()]
        source = self._source
        self._stages.widen(source.encoders, source.searchers)
        encoded: asyncio.Queue[tuple[JobBatch, Any]] = asyncio.Queue(maxsize=source.searchers)
        first = [self._encode(encoded) for _ in range(source.encoders)]
        return first + [self._search(encoded) for _ in range(source.searchers)]

    async def _encode_and_search(self) -> None:
        while True:
            batch = await self._next_batch()
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._stages.encoding, self._run_stages, batch
                )
            except Exception as error:
                batch.error = error
            self._deliver(batch)

    def _run_stages(self, batch: JobBatch) -> None:
        """Both stages, in the thread that calls: between them nothing waits for the event loop."""
        source, jobs = self._source, batch.jobs
        began = now()
        prepared = source.prepare([job.query for job in jobs])
        batch.seconds["encode"] = now() - began
        began = now()
        batch.answers = source.find(prepared, [job.topk for job in jobs])
        batch.seconds["search"] = now() - began

    async def _encode(self, encoded: asyncio.Queue[tuple[JobBatch, Any]]) -> None:
        while True:
            batch = await self._next_batch()
            queries = [job.query for job in batch.jobs]
            try:
                prepared = await _measure(
                    batch, "encode", self._stages.encoding, self._source.prepare, queries
                )
            except Exception as error:
                batch.error = error
                self._deliver(batch)
            else:
                await encoded.put((batch, prepared))

    async def _search(self, encoded: asyncio.Queue[tuple[JobBatch, Any]]) -> None:
        while True:
            batch, prepared = await encoded.get()
            topks, searching = [job.topk for job in batch.jobs], self._stages.searching
            try:
                batch.answers = await _measure(batch, "search", searching, self._source.find, prepared, topks)
            except Exception as error:
                batch.error = error
            self._deliver(batch)


async def _measure(
    batch: JobBatch, stage: str, threads: ThreadPoolExecutor, work: Callable[..., Made], *arguments: Any
) -> Made:
    started = now()
    result = await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    batch.seconds[stage] = now() - started
    return result


class RemoteRunner:
    """Queries to a remote source, as many at once as it allows. ``next_batch`` must give batches of one."""

    def __init__(self, source: RemoteSource, next_batch: NextBatch, deliver: Deliver):
        self._source = source
        self._next_batch, self._deliver = next_batch, deliver
        self._free = asyncio.Semaphore(source.concurrency)

    def work(self) -> Work:
        return [self._call_batches()]

    async def _call_batches(self) -> None:
        under_way: set[asyncio.Task] = set()
        try:
            while True:
                await self._free.acquire()  # first, so that a query that waits for it can still be withdrawn
                task = asyncio.create_task(self._call(await self._next_batch()))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _call(self, batch: JobBatch) -> None:
        (job,) = batch.jobs
        try:
            batch.answers = [await self._source.answer(job.query, job.topk)]
            batch.seconds["search"] = now() - batch.started
        except Exception as error:
            batch.error = error
        finally:
            self._free.release()
        self._deliver(batch)
