"""The queue of waiting jobs, over a real event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.engine.job_queue import JobQueue
from retrieval_server.engine.jobs import QueryJob


@asynccontextmanager
async def queue_of(max_batch=4):
    async with asyncio.timeout(30):
        yield JobQueue(max_batch=max_batch, max_wait_s=0.0)


def jobs(*queries):
    return [QueryJob(query, 1, asyncio.get_running_loop().create_future()) for query in queries]


def queries(batch):
    return [job.query for job in batch.jobs]


async def test_a_job_that_is_withdrawn_is_not_taken_and_no_longer_counts():
    async with queue_of() as queue:
        first, second = jobs("a", "b")
        queue.add([first, second])
        assert queue.withdraw(first) and not queue.withdraw(first)
        assert (len(queue), queue.unanswered) == (1, 1)
        assert queries(await queue.next_batch()) == ["b"]
        assert not queue.withdraw(second)
        assert (len(queue), queue.unanswered) == (0, 1)


async def test_jobs_of_a_failed_batch_come_back_one_at_a_time_before_all_others():
    async with queue_of() as queue:
        queue.add(jobs("a", "b"))
        failed = await queue.next_batch()
        queue.add(jobs("c"))
        queue.retry_alone(failed.jobs)
        assert [queries(await queue.next_batch()) for _ in range(3)] == [["a"], ["b"], ["c"]]


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=9), min_size=1, max_size=6), st.integers(1, 5))
async def test_every_job_is_taken_once_and_counts_until_it_is_done(requests, max_batch):
    async with queue_of(max_batch) as queue:
        added = [jobs(*map(str, request)) for request in requests]
        for request in added:
            queue.add(request)
        every = {job for request in added for job in request}
        taken = []
        while len(queue):
            batch = await queue.next_batch()
            assert 1 <= len(batch.jobs) <= max_batch
            taken += batch.jobs
            assert queue.unanswered == len(every), "taken, and not answered yet"
        assert len(taken) == len(every) and set(taken) == every
        for _ in taken:
            queue.job_done()
        assert queue.unanswered == 0
