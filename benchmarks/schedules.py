"""Schedules for the same trajectories: the agent core's own, and those it is compared with.

    async      every trajectory is an independent coroutine (the agent core)
    lockstep   generate a turn for all, search for all in one request, repeat (Search-R1's loop)
    serial     the same, but one HTTP request after another (RAG-R1's loop)

The turn loop is `rag_r1.agent.Episode` in all three, with the same engine and the same retriever. The other
two add a barrier before every generation and every search, at which a trajectory waits until all running ones
have arrived. So tokens, turns and the loop's own work are the same, and only the waiting differs.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Budget, Codec, Engine, Episode, Generation, Trajectory
from rag_r1.protocols import Document, Failure, Protocol
from rag_r1.tools import Searcher, search_tools

NAMES = ("async", "lockstep", "serial")
#: Queries in one request of the lock-step schedule.
BATCH = 64

Results = Sequence[Sequence[Document] | Failure]


@dataclass
class Meter:
    """How busy an engine is. Call `change` when requests arrive and end; each occupies at most one slot."""

    slots: int
    in_flight: int = 0
    slot_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def change(self, by: int) -> None:
        """Note that the engine has `by` more (or fewer) requests from now on."""
        now = time.perf_counter()
        self.slot_s += min(self.in_flight, self.slots) * (now - self._since)
        self.in_flight, self._since = self.in_flight + by, now


class Barrier:
    """Releases all waiting trajectories when all running ones have arrived."""

    def __init__(self, players: int):
        self.players, self.waiting = players, []

    async def arrive(self) -> None:
        """Wait until all others have arrived."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self._release()
        await future

    def leave(self) -> None:
        """A trajectory has ended and is no longer waited for."""
        self.players -= 1
        self._release()

    def _release(self) -> None:
        if len(self.waiting) >= self.players:
            waiting, self.waiting = self.waiting, []
            for future in waiting:
                future.set_result(None)


@dataclass
class MeteredEngine:
    """One trajectory's engine: waits at the barrier, if there is one, and is measured by the meter."""

    engine: Engine
    meter: Meter
    barrier: Barrier | None

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        if self.barrier:
            await self.barrier.arrive()
        self.meter.change(+1)
        try:
            return await self.engine.generate(context, max_tokens, stop)
        finally:
            self.meter.change(-1)


@dataclass
class PacedSearcher:
    """One trajectory's searcher. A search takes the drawn time, or the retriever's own if that is longer.

    `capacity` limits the number of concurrent searches; the serial schedule has a capacity of one.
    """

    searcher: Searcher
    pause: Callable[[], float]  # real seconds of the next search
    barrier: Barrier | None
    capacity: asyncio.Semaphore | None
    waited_s: float = 0.0

    async def search(self, queries: Sequence[str]) -> Results:
        if self.barrier:
            await self.barrier.arrive()
        pause = self.pause()
        self.waited_s += pause
        async with self.capacity or nullcontext():
            results, _ = await asyncio.gather(self.searcher.search(queries), asyncio.sleep(pause))
        return results


class OneRequest:
    """Merges the queries that all trajectories send at the same time into one call of the searcher."""

    def __init__(self, searcher: Searcher):
        self.searcher = searcher
        self.waiting: list[tuple[Sequence[str], asyncio.Future]] = []
        self.tasks: set[asyncio.Task] = set()

    async def search(self, queries: Sequence[str]) -> Results:
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self._send)  # after all trajectories that the barrier has just released
        future = loop.create_future()
        self.waiting.append((queries, future))
        return await future

    def _send(self) -> None:
        while self.waiting:
            batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
            task = asyncio.ensure_future(self._ask(batch))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _ask(self, batch: Sequence[tuple[Sequence[str], asyncio.Future]]) -> None:
        results = list(await self.searcher.search([query for queries, _ in batch for query in queries]))
        for queries, future in batch:
            future.set_result(results[: len(queries)])
            del results[: len(queries)]


@dataclass(frozen=True)
class Job:
    """One trajectory to play: its prompt, its engine, and the duration of its next search (real seconds)."""

    id: str
    question: str
    prompt_ids: Sequence[int]
    engine: Any
    pause: Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """One schedule's run, in real seconds. `busy` is the mean share of the engine's slots in use."""

    name: str
    wall_s: float
    busy: float
    cpu_s: float
    search_wait_s: list[float]  # total drawn search time of each trajectory
    records: list[Trajectory]

    @property
    def turns(self) -> int:
        return sum(len(record.turns) for record in self.records)

    @property
    def statuses(self) -> Counter:
        return Counter(record.status for record in self.records)

    @property
    def failed_searches(self) -> int:
        return sum(record.n_tool_failures for record in self.records)


class closing:
    """`async with` for a searcher that may have a `close`."""

    def __init__(self, searcher: Any):
        self.searcher = searcher

    async def __aenter__(self) -> Any:
        return self.searcher

    async def __aexit__(self, *_: Any) -> None:
        if hasattr(self.searcher, "close"):
            await self.searcher.close()


async def play(
    name: str,
    jobs: Sequence[Job],
    searcher: Searcher,
    protocol: Protocol,
    budget: Budget,
    codec: Codec,
    slots: int | None = None,
    capacity: int | None = None,
) -> Outcome:
    """Play all jobs under a schedule. `slots`: the engine's slots (None: one for each job)."""
    barrier = None if name == "async" else Barrier(len(jobs))
    shared = OneRequest(searcher) if name == "lockstep" else searcher
    limit = 1 if name == "serial" else capacity
    gate = asyncio.Semaphore(limit) if limit else None
    meter = Meter(slots or len(jobs))
    paced = [PacedSearcher(shared, job.pause, barrier, gate) for job in jobs]

    async def play_job(job: Job, job_searcher: PacedSearcher) -> Trajectory:
        engine = MeteredEngine(job.engine, meter, barrier)
        try:
            episode = Episode(protocol, budget, engine, search_tools(job_searcher), codec)
            return await episode.run(job.id, job.question, job.prompt_ids)
        finally:
            if barrier:
                barrier.leave()

    gc.collect()  # garbage of the run before this one
    started, cpu = time.perf_counter(), time.process_time()
    records = await asyncio.gather(*map(play_job, jobs, paced))
    wall = time.perf_counter() - started
    return Outcome(
        name,
        wall,
        meter.slot_s / (meter.slots * wall),
        time.process_time() - cpu,
        [searcher.waited_s for searcher in paced],
        records,
    )
