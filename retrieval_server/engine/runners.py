"""Runners take batches from the queue, search them in a source, and deliver the results.

A runner is given two callables, `next_batch` and `deliver`, and knows nothing else of who feeds it. Its
coroutines, from `work`, run in the event loop until they are cancelled; every batch that is taken is
delivered once, unless that happens first.

`StagedRunner` runs the stages of a `StagedSource` in threads, as many batches at once in each as the
source allows: one for an index in this process, several where other processes do the work. Between the stages
is a queue of as many batches as the second stage runs, so that the first is never far ahead. Where the two
would take the cores from each other, a batch goes through both before the next is taken.

`RemoteRunner` calls a `RemoteSource` in the event loop, for one query at a time and many at once.
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
Result = TypeVar("Result")


class StageThreads:
    """The threads of the two stages. An index is loaded in the one that will encode."""

    def __init__(self) -> None:
        self.encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self.searching = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def run_encoding(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, done in the thread that encodes."""
        return await asyncio.get_running_loop().run_in_executor(self.encoding, work)

    def widen(self, encoders: int, searchers: int) -> None:
        """Take so many threads for each stage, in place of one."""
        if encoders > 1 or searchers > 1:
            self.end()
            self.encoding = ThreadPoolExecutor(encoders, thread_name_prefix="encode")
            self.searching = ThreadPoolExecutor(searchers, thread_name_prefix="search")

    def end(self) -> None:
        """End the threads; returns when the last has finished its work."""
        for threads in (self.encoding, self.searching):
            threads.shutdown(wait=True, cancel_futures=True)


class StagedRunner:
    """Takes batches through the two stages of a source. With `overlap` both stages run at once."""

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
        encoding = [self._encode(encoded) for _ in range(source.encoders)]
        return encoding + [self._search(encoded) for _ in range(source.searchers)]

    async def _encode_and_search(self) -> None:
        """Take batches, one after the other, through both stages."""
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
        started = now()
        prepared = self._source.prepare([job.query for job in batch.jobs])
        encoded = now()
        batch.seconds["encode"] = encoded - started
        batch.answers = self._source.find(prepared, [job.topk for job in batch.jobs])
        batch.seconds["search"] = now() - encoded

    async def _encode(self, encoded: asyncio.Queue[tuple[JobBatch, Any]]) -> None:
        """Take batches through the first stage, and put them into the queue of the second."""
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
        """Take batches through the second stage, and deliver them."""
        while True:
            batch, prepared = await encoded.get()
            topks = [job.topk for job in batch.jobs]
            try:
                batch.answers = await _measure(
                    batch, "search", self._stages.searching, self._source.find, prepared, topks
                )
            except Exception as error:
                batch.error = error
            self._deliver(batch)


async def _measure(
    batch: JobBatch, stage: str, threads: ThreadPoolExecutor, work: Callable[..., Result], *arguments: Any
) -> Result:
    """The result of `work(*arguments)`, done in a thread; its time is noted in `batch.seconds`."""
    started = now()
    result = await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    batch.seconds[stage] = now() - started
    return result


class RemoteRunner:
    """Sends queries to a remote source, as many at once as it allows. `next_batch` gives batches of one."""

    def __init__(self, source: RemoteSource, next_batch: NextBatch, deliver: Deliver):
        self._source = source
        self._next_batch, self._deliver = next_batch, deliver
        self._free = asyncio.Semaphore(source.concurrency)

    def work(self) -> Work:
        """The one coroutine of the runner."""
        return [self._call_batches()]

    async def _call_batches(self) -> None:
        """Start a call for each query, as soon as fewer are under way than may be at once."""
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
        """Answer the one query of a batch, and deliver it."""
        (job,) = batch.jobs
        try:
            batch.answers = [await self._source.answer(job.query, job.topk)]
            batch.seconds["search"] = now() - batch.started
        except Exception as error:
            batch.error = error
        finally:
            self._free.release()
        self._deliver(batch)
