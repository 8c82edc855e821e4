"""Runs jobs with a fixed concurrency until they are done or the run is cancelled.

If `stop` is called, no further job begins. The pool then waits for the requests under way at the endpoint
(`idle`), so that their responses are cached, and cancels the remaining jobs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tqdm import tqdm

from rag_r1.runs.cancel_token import CancelToken

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]


@dataclass
class JobPool:
    """Runs jobs, at most `in_flight` at a time. `idle` waits until no request is under way; `bar`: the
    progress bar, None while no jobs run."""

    in_flight: int
    stop: CancelToken
    idle: Callable[[], Awaitable[None]] | None = None
    bar: tqdm | None = field(default=None, init=False)

    async def run(self, jobs: Iterable[Job[T]], total: int, unit: str) -> list[T | None]:
        """Runs `total` jobs; returns their results in their order, None for those that did not end because
        the run was stopped (`stop.reason` says why). `unit`: the noun of the progress bar. Raises what a job
        raises, after the responses under way are cached."""
        results: list[T | None] = [None] * total
        queue = enumerate(jobs)
        with tqdm(total=total, unit=unit, mininterval=1.0) as self.bar:
            workers = [
                asyncio.create_task(self._work(queue, results)) for _ in range(min(self.in_flight, total))
            ]
            stop_task = asyncio.create_task(self.stop.wait())
            try:
                pending: set[Any] = set(workers)
                while pending and not stop_task.done():
                    done, pending = await asyncio.wait(
                        {*pending, stop_task}, return_when=asyncio.FIRST_COMPLETED
                    )
                    pending.discard(stop_task)
                    for task in done - {stop_task}:
                        task.result()
            except BaseException:
                self.stop("an error")
                raise
            finally:
                if self.stop.reason is not None and self.idle is not None:
                    self.bar.write("waiting for the answers that are under way", file=sys.stderr)
                    await self.idle()
                for task in (*workers, stop_task):
                    task.cancel()
                await asyncio.gather(*workers, stop_task, return_exceptions=True)
                self.bar = None
        return results

    async def _work(self, jobs: Iterator[tuple[int, Job[T]]], results: list[T | None]) -> None:
        """Run one job after the other from the shared iterator, until it is empty or the run is stopped."""
        for number, job in jobs:
            if self.stop.reason is not None:
                return
            results[number] = await job()
            if self.bar is not None:
                self.bar.update()
