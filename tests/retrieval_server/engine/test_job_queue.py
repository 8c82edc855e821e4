"""The queue of waiting jobs, over a real event loop."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.engine.job_queue import JobQueue
from retrieval_server.engine.jobs import QueryJob


def run(conversation, **options):
    async def main():
        queue = JobQueue(**({"max_batch": 4, "max_wait_s": 0.0} | options))
        await asyncio.wait_for(conversation(queue), 30)

    asyncio.run(main())


def jobs(*queries):
    loop = asyncio.get_running_loop()
    return [QueryJob(query, 1, loop.create_future()) for query in queries]


def queries(batch):
    return [job.query for job in batch.jobs]


def test_who_takes_waits_until_there_is_something():
    async def conversation(queue):
        taking = asyncio.create_task(queue.next_batch())
        await asyncio.sleep(0.01)
        assert not taking.done()
        queue.add(jobs("a", "b"))
        assert queries(await taking) == ["a", "b"]

    run(conversation)


def test_a_batch_goes_to_one_of_those_who_wait():
    async def conversation(queue):
        takers = [asyncio.create_task(queue.next_batch()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.add(jobs(*"abcdefghijkl"))
        batches = await asyncio.gather(*takers)
        assert sorted(query for batch in batches for query in queries(batch)) == list("abcdefghijkl")

    run(conversation)


def test_a_job_that_is_withdrawn_is_not_taken_and_no_longer_counts():
    async def conversation(queue):
        first, second = jobs("a", "b")
        queue.add([first, second])
        assert queue.withdraw(first) and not queue.withdraw(first)
        assert (len(queue), queue.unanswered) == (1, 1)
        assert queries(await queue.next_batch()) == ["b"]
        assert not queue.withdraw(second)
        assert (len(queue), queue.unanswered) == (0, 1)

    run(conversation)


def test_jobs_of_a_failed_batch_come_back_one_at_a_time_before_all_others():
    async def conversation(queue):
        queue.add(jobs("a", "b"))
        failed = await queue.next_batch()
        queue.add(jobs("c"))
        queue.retry_alone(failed.jobs)
        assert [queries(await queue.next_batch()) for _ in range(3)] == [["a"], ["b"], ["c"]]

    run(conversation)


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=9), min_size=1, max_size=6), st.integers(1, 5))
def test_every_job_is_taken_once_and_counts_until_it_is_done(requests, max_batch):
    async def conversation(queue):
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

    run(conversation, max_batch=max_batch)
