"""Runs jobs with a fixed concurrency until they are done or the run is cancelled.

After `stop` is called, a `JobPool` begins no further job. It then waits until the endpoint has answered its
open requests, so that their responses are cached, and cancels the remaining jobs. The next run of the command
continues from the cache. `without_waiting` runs a single job if the cache has all its answers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tqdm import tqdm

from rag_r1.runs.cancel_token import CancelToken

Result = TypeVar("Result")
#: Starts a job, whose result is awaited.
Job = Callable[[], Awaitable[Result]]


async def without_waiting(job: Job[Result]) -> Result | None:
    """Return the result of a job that need not wait, such as one whose answers are all cached; None if it has
    to, and then the job is cancelled. Raises what the job raises."""
    task = asyncio.ensure_future(job())
    await asyncio.sleep(0)  # the task runs until it ends or waits
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


@dataclass
class JobPool:
    """Runs at most `in_flight` jobs at the same time."""

    in_flight: int
    stop: CancelToken
    #: Waits until no request to the endpoint is open.
    wait_until_idle: Callable[[], Awaitable[None]] | None = None
    #: The progress bar; None while no jobs run.
    bar: tqdm | None = field(default=None, init=False)

    async def run(self, jobs: Iterable[Job[Result]], total: int, unit: str) -> list[Result | None]:
        """Run `total` jobs and return their results in order, None for jobs that did not finish because the
        run was stopped (`stop.reason` says why). `unit` is the noun of the progress bar.

        If a job raises an exception, even after the run was stopped, the pool stops, waits for the open
        requests and raises the exception."""
        results: list[Result | None] = [None] * total
        queue = enumerate(jobs)
        n_workers = min(self.in_flight, total)
        with tqdm(total=total, unit=unit, mininterval=1.0) as self.bar:
            workers = [asyncio.create_task(self._work(queue, results)) for _ in range(n_workers)]
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
                if self.stop.reason is not None and self.wait_until_idle is not None:
                    self.bar.write("waiting for the answers that are under way", file=sys.stderr)
                    await self.wait_until_idle()
                ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
                for task in (*workers, stop_task):
                    task.cancel()
                await asyncio.gather(*workers, stop_task, return_exceptions=True)
                self.bar = None
        for worker in ended:
            worker.result()
        return results

    async def _work(self, jobs: Iterator[tuple[int, Job[Result]]], results: list[Result | None]) -> None:
        """Run jobs from the shared iterator, which yields each with the index of its result, one after the
        other, until it is empty or the run is stopped."""
        for index, job in jobs:
            if self.stop.reason is not None:
                return
            results[index] = await job()
            if self.bar is not None:
                self.bar.update()
