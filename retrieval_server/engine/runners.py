"""Runners take batches from the queue, search them in a source, and deliver the results.

A runner depends only on two callables of the engine, `next_batch` and `deliver`. `work` returns its
coroutines, which run in the event loop until they are cancelled. Every batch that was taken is delivered
once, unless the runner is cancelled before.

`StagedRunner` runs the two stages of a `StagedSource` in threads. Each stage processes as many batches at
once as the source allows: one for an index in this process, several if other processes do the work. The queue
between the stages holds as many batches as the second stage runs, so that the first stage is never far ahead.
If the stages would compete for the same cores, a batch passes both before the next one is taken.

`RemoteRunner` calls a `RemoteSource` in the event loop, with one query per call and many calls at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from retrieval_server.engine.jobs import JobBatch, now
from retrieval_server.source import RemoteSource, StagedSource

#: What a runner gets from the engine, and the coroutines that it returns.
NextBatch = Callable[[], Awaitable[JobBatch]]
Deliver = Callable[[JobBatch], None]
Work = list[Coroutine[Any, Any, None]]
Result = TypeVar("Result")


class StageThreads:
    """The threads of the two stages. The encoding thread also loads the index."""

    def __init__(self) -> None:
        self.encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self.searching = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def run_encoding(self, step: Callable[[], Result]) -> Result:
        """Run `step` in the encoding thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self.encoding, step)

    def widen(self, encoders: int, searchers: int) -> None:
        """Replace the single thread of each stage by this many threads."""
        if encoders > 1 or searchers > 1:
            self.end()
            self.encoding = ThreadPoolExecutor(encoders, thread_name_prefix="encode")
            self.searching = ThreadPoolExecutor(searchers, thread_name_prefix="search")

    def end(self) -> None:
        """Stop the threads. Returns when the last one has finished its work."""
        for threads in (self.encoding, self.searching):
            threads.shutdown(wait=True, cancel_futures=True)


class StagedRunner:
    """Passes batches through the two stages of a source. With `overlap` both stages run at once."""

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
        """Return one coroutine for each batch that may be in a stage at the same time."""
        if not self._overlap:
            return [self._encode_and_search()]
        source = self._source
        self._stages.widen(source.encoders, source.searchers)
        encoded: asyncio.Queue[tuple[JobBatch, Any]] = asyncio.Queue(maxsize=source.searchers)
        encoding = [self._encode(encoded) for _ in range(source.encoders)]
        return encoding + [self._search(encoded) for _ in range(source.searchers)]

    async def _encode_and_search(self) -> None:
        """Pass batches through both stages, one after the other."""
        while True:
            batch = await self._next_batch()
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._stages.encoding, _raise_exceptions, self._run_stages, batch
                )
            except Exception as error:
                batch.error = error
            self._deliver(batch)

    def _run_stages(self, batch: JobBatch) -> None:
        """Run both stages in the calling thread, so that nothing waits for the event loop in between."""
        started = now()
        prepared = self._source.prepare([job.query for job in batch.jobs])
        encoded = now()
        batch.seconds["encode"] = encoded - started
        batch.answers = self._source.find(prepared, [job.topk for job in batch.jobs])
        batch.seconds["search"] = now() - encoded

    async def _encode(self, encoded: asyncio.Queue[tuple[JobBatch, Any]]) -> None:
        """Pass batches through the first stage and put them into the queue of the second."""
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
        """Pass batches through the second stage and deliver them."""
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
    batch: JobBatch, stage: str, threads: ThreadPoolExecutor, step: Callable[..., Result], *arguments: Any
) -> Result:
    """Return `step(*arguments)`, run in one of the threads, and record its time in `batch.seconds`."""
    started = now()
    result = await asyncio.get_running_loop().run_in_executor(threads, _raise_exceptions, step, *arguments)
    batch.seconds[stage] = now() - started
    return result


def _raise_exceptions(step: Callable[..., Result], *arguments: Any) -> Result:
    """Return `step(*arguments)`; convert errors that are not an Exception to RuntimeError.

    A panic in a tokenizer's Rust code is a bare BaseException, which would end the runner's coroutine
    unnoticed.
    """
    try:
        return step(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class RemoteRunner:
    """Sends queries to a remote source, as many at once as it allows. Its batches contain one query each."""

    def __init__(self, source: RemoteSource, next_batch: NextBatch, deliver: Deliver):
        self._source = source
        self._next_batch, self._deliver = next_batch, deliver
        self._free = asyncio.Semaphore(source.concurrency)

    def work(self) -> Work:
        """Return the only coroutine of the runner."""
        return [self._call_batches()]

    async def _call_batches(self) -> None:
        """Start a call for each query as soon as the source allows another one."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._free.acquire()  # before taking a query: a waiting one can still be withdrawn
                task = asyncio.create_task(self._call(await self._next_batch()))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _call(self, batch: JobBatch) -> None:
        """Answer the only query of a batch and deliver the batch."""
        (job,) = batch.jobs
        try:
            batch.answers = [await self._source.answer(job.query, job.topk)]
            batch.seconds["search"] = now() - batch.started
        except Exception as error:
            batch.error = error
        finally:
            self._free.release()
        self._deliver(batch)
