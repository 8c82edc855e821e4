"""How waiting queries get through a source: in batches through two stages, or each on its own.

A ``StagedSource`` has its stages run in threads, as many batches at once in each as it allows: one for an
index in this process, several where other processes do the work. Between them stands a queue that holds as
many batches as the second stage runs, so that the first is never far ahead. Where the stages would only take
the cores from each other, a batch goes through both before the next is cut. A ``RemoteSource`` is asked in
the event loop. Both end in ``Line.answered`` or ``Line.failed``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from retrieval_server.sources import RemoteSource, Retrieved, StagedSource

now = time.monotonic
Answer = Sequence[Retrieved]
Made = TypeVar("Made")


class Job:
    """One query on its way; compared by identity."""

    def __init__(self, query: str, topk: int, future: asyncio.Future[Answer]):
        self.query, self.topk, self.future = query, topk, future
        self.arrived = now()
        self.askers = 0


@dataclass
class Batch:
    """Queries that go together; ``prepared`` is what the first stage made of them."""

    jobs: list[Job]
    started: float
    prepared: Any = None


class Line(Protocol):
    """Where the work comes from and goes to: the engine."""

    async def next_batch(self) -> Batch:
        """The next batch, when it is due."""

    def answered(self, batch: Batch, answers: Sequence[Answer]) -> None: ...

    def failed(self, batch: Batch, error: Exception) -> None: ...

    def took(self, stage: str, seconds: float) -> None: ...


class Stages:
    """The threads of the two stages. ``load`` runs in the one that will encode."""

    def __init__(self) -> None:
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._searching = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def load(self, work: Callable[..., Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work)

    def work(self, line: Line, source: StagedSource, overlap: bool) -> list[Coroutine[Any, Any, None]]:
        """One coroutine for each batch that may be in a stage at a time."""
        if not overlap:
            return [self._one_after_the_other(line, source)]
        if source.encoders > 1 or source.searchers > 1:
            self.end()
            self._encoding = ThreadPoolExecutor(source.encoders, thread_name_prefix="encode")
            self._searching = ThreadPoolExecutor(source.searchers, thread_name_prefix="search")
        handed: asyncio.Queue[Batch] = asyncio.Queue(maxsize=source.searchers)
        first = [self._encode(line, source, handed) for _ in range(source.encoders)]
        return first + [self._search(line, source, handed) for _ in range(source.searchers)]

    def end(self) -> None:
        """Returns when no thread works any more."""
        for threads in (self._encoding, self._searching):
            threads.shutdown(wait=True, cancel_futures=True)

    async def _one_after_the_other(self, line: Line, source: StagedSource) -> None:
        while True:
            batch = await line.next_batch()
            try:
                await self._prepare(line, source, batch)
                answers = await self._find(line, source, batch, self._encoding)
            except Exception as error:
                line.failed(batch, error)
            else:
                line.answered(batch, answers)

    async def _encode(self, line: Line, source: StagedSource, handed: asyncio.Queue[Batch]) -> None:
        while True:
            batch = await line.next_batch()
            try:
                await self._prepare(line, source, batch)
            except Exception as error:
                line.failed(batch, error)
            else:
                await handed.put(batch)

    async def _search(self, line: Line, source: StagedSource, handed: asyncio.Queue[Batch]) -> None:
        while True:
            batch = await handed.get()
            try:
                answers = await self._find(line, source, batch, self._searching)
            except Exception as error:
                line.failed(batch, error)
            else:
                line.answered(batch, answers)

    async def _prepare(self, line: Line, source: StagedSource, batch: Batch) -> None:
        queries = [job.query for job in batch.jobs]
        batch.prepared = await _timed(line, "encode", self._encoding, source.prepare, queries)

    async def _find(
        self, line: Line, source: StagedSource, batch: Batch, threads: ThreadPoolExecutor
    ) -> Sequence[Answer]:
        topks = [job.topk for job in batch.jobs]
        return await _timed(line, "search", threads, source.find, batch.prepared, topks)


async def _timed(
    line: Line, stage: str, threads: ThreadPoolExecutor, work: Callable[..., Made], *arguments: Any
) -> Made:
    started = now()
    made = await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    line.took(stage, now() - started)
    return made


async def ask_each(line: Line, source: RemoteSource) -> None:
    """Asks a remote source, as many queries at once as it allows. The line must give batches of one."""
    free = asyncio.Semaphore(source.concurrency)
    under_way: set[asyncio.Task] = set()

    async def ask(batch: Batch) -> None:
        (job,) = batch.jobs
        try:
            answer = await source.answer(job.query, job.topk)
        except Exception as error:
            line.failed(batch, error)
        else:
            line.took("search", now() - batch.started)
            line.answered(batch, [answer])
        finally:
            free.release()

    try:
        while True:
            await free.acquire()  # first, so that who waits for it can still leave the line
            task = asyncio.create_task(ask(await line.next_batch()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
