"""Plays the same trajectories under several schedules: that of the agent core, and two for comparison.

    async      every trajectory is an independent coroutine (the agent core)
    lockstep   generate a turn for all, search for all in one request, repeat (Search-R1's loop)
    serial     the same, but one HTTP request after another (RAG-R1's loop)

The turn loop is `rag_r1.agent.Episode` in all three, with the same engine and the same retriever. `lockstep`
and `serial` add a barrier before every generation and every search, at which a trajectory waits until all
running ones have arrived. Tokens, turns and the work of the loop are therefore the same, and only the waiting
differs.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent import Budget, Codec, Engine, Episode, Generation, Trajectory
from rag_r1.protocols import Document, Failure, Protocol
from rag_r1.tools import Searcher, search_tools

NAMES = ("async", "lockstep", "serial")
#: Maximum number of queries in one request of the lock-step schedule.
BATCH = 64

#: The documents for each query, or why it failed.
Results = Sequence[Sequence[Document] | Failure]
#: Returns the duration of the next search, in real seconds.
Pause = Callable[[], float]


@dataclass
class Meter:
    """Measures how busy an engine is; `change` is called whenever a request begins or ends."""

    slots: int
    in_flight: int = 0
    #: Sum over the slots of the seconds in use.
    slot_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def change(self, by: int) -> None:
        """Record that the engine has `by` more (or fewer) requests from now on."""
        now = time.perf_counter()
        self.slot_s += min(self.in_flight, self.slots) * (now - self._since)
        self.in_flight, self._since = self.in_flight + by, now


class Barrier:
    """Releases all waiting trajectories when all running ones have arrived."""

    def __init__(self, running: int):
        """`running` is the number of trajectories that run."""
        self.running = running
        self.waiting: list[asyncio.Future] = []

    async def arrive(self) -> None:
        """Wait until all others have arrived."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self._release()
        await future

    def leave(self) -> None:
        """Stop waiting for a trajectory that has ended."""
        self.running -= 1
        self._release()

    def _release(self) -> None:
        if len(self.waiting) >= self.running:
            waiting, self.waiting = self.waiting, []
            for future in waiting:
                future.set_result(None)


@dataclass
class MeteredEngine:
    """The engine of one trajectory, which waits at the barrier, if there is one, and updates the meter."""

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
    """The searcher of one trajectory; a search takes the drawn time, or the retriever's if that is longer."""

    searcher: Searcher
    pause: Pause
    barrier: Barrier | None
    #: Limits the number of concurrent searches; the serial schedule has a capacity of one.
    capacity: asyncio.Semaphore | None
    #: Sum of the drawn durations, in seconds.
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
            loop.call_soon(self._send)  # runs after the trajectories that the barrier has just released
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
    """A trajectory to play."""

    id: str
    question: str
    prompt_ids: Sequence[int]
    engine: Any
    pause: Pause


@dataclass(frozen=True)
class Outcome:
    """The result of a schedule's run; times are in real seconds."""

    name: str
    wall_s: float
    #: Mean share of the engine's slots in use.
    busy: float
    cpu_s: float
    #: Sum of the drawn search times of each trajectory.
    search_wait_s: list[float]
    records: list[Trajectory]

    @property
    def turns(self) -> int:
        """The number of turns of all trajectories."""
        return sum(len(record.turns) for record in self.records)

    @property
    def statuses(self) -> Counter[str]:
        """Status at the end -> number of trajectories."""
        return Counter(record.status for record in self.records)

    @property
    def failed_searches(self) -> int:
        """The number of searches that failed."""
        return sum(record.n_tool_failures for record in self.records)


@asynccontextmanager
async def closing(searcher: Any) -> AsyncIterator[Any]:
    """Yield a searcher, and close it at the end of the block, if it has a `close`."""
    try:
        yield searcher
    finally:
        if hasattr(searcher, "close"):
            await searcher.close()


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
    """Play all jobs under the schedule `name`, and return the result.

    `slots` is the number of the engine's slots (None: one for each job); `capacity` limits the number of
    concurrent searches (None: no limit), which is 1 in the schedule `serial`.
    """
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

    gc.collect()  # the garbage of the previous run must not be collected during this one
    started, cpu_started = time.perf_counter(), time.process_time()
    records = await asyncio.gather(*map(play_job, jobs, paced))
    wall = time.perf_counter() - started
    return Outcome(
        name,
        wall,
        meter.slot_s / (meter.slots * wall),
        time.process_time() - cpu_started,
        [job_searcher.waited_s for job_searcher in paced],
        records,
    )
