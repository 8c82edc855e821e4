"""Runners between a queue and a list: they need no engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from retrieval_server.engine.jobs import JobBatch, QueryJob, now
from retrieval_server.engine.runners import RemoteRunner, StagedRunner, StageThreads
from retrieval_server.source import RemoteSource, SourceDescription, StagedSource

from ..conftest import until


class Echo(StagedSource):
    """Answers a query with itself; "bad first" and "bad second" break that stage."""

    description = SourceDescription("echo")

    def __init__(self, workers=1):
        self.encoders = self.searchers = workers

    def warm_up(self):
        pass

    def prepare(self, queries):
        if "bad first" in queries:
            raise ValueError("first")
        return [query.upper() for query in queries]

    def find(self, prepared, topks):
        if "BAD SECOND" in prepared:
            raise ValueError("second")
        return [(query,) * topk for query, topk in zip(prepared, topks, strict=True)]


class RemoteEcho(RemoteSource):
    description = SourceDescription("remote echo")
    concurrency = 2

    async def answer(self, query, topk):
        await asyncio.sleep(0)
        if query.startswith("bad"):
            raise ValueError(query)
        return (query.upper(),) * topk


def batch(*queries, topk=1):
    loop = asyncio.get_running_loop()
    return JobBatch([QueryJob(query, topk, loop.create_future()) for query in queries], now())


@asynccontextmanager
async def running(make):
    """The queue that a runner takes batches from, and the list that it delivers them to."""
    waiting, delivered = asyncio.Queue(), []
    tasks = [asyncio.create_task(work) for work in make(waiting.get, delivered.append).work()]
    try:
        async with asyncio.timeout(30):
            yield waiting, delivered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
async def test_every_batch_is_delivered_once_with_an_answer_for_each_job(overlap, workers):
    stages = StageThreads()
    source = Echo(workers)
    async with running(lambda take, give: StagedRunner(source, stages, take, give, overlap)) as ends:
        waiting, delivered = ends
        batches = [batch(f"a{i}", f"b{i}", topk=2) for i in range(20)]
        for one in batches:
            waiting.put_nowait(one)
        await until(lambda: len(delivered) == 20)
        assert sorted(map(id, delivered)) == sorted(map(id, batches))
        for i, one in enumerate(batches):
            assert one.answers == [(f"A{i}",) * 2, (f"B{i}",) * 2] and one.error is None
            assert set(one.seconds) == {"encode", "search"}
    stages.end()


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_batch_that_fails_is_delivered_with_its_error_and_the_next_one_is_served(overlap):
    stages = StageThreads()
    async with running(lambda take, give: StagedRunner(Echo(), stages, take, give, overlap)) as ends:
        waiting, delivered = ends
        for query in ("bad first", "bad second", "good"):
            waiting.put_nowait(batch(query))
        await until(lambda: len(delivered) == 3)
        told = {one.jobs[0].query: (str(one.error), one.answers, set(one.seconds)) for one in delivered}
    stages.end()
    assert told == {
        "bad first": ("first", None, set()),
        "bad second": ("second", None, {"encode"}),
        "good": ("None", [("GOOD",)], {"encode", "search"}),
    }


async def test_a_remote_source_is_called_for_each_query_and_a_failure_is_delivered():
    async with running(lambda take, give: RemoteRunner(RemoteEcho(), take, give)) as (waiting, delivered):
        for query in ("a", "bad", "b", "c"):
            waiting.put_nowait(batch(query))
        await until(lambda: len(delivered) == 4)
    told = {one.jobs[0].query: one.answers or str(one.error) for one in delivered}
    assert told == {"a": [("A",)], "bad": "bad", "b": [("B",)], "c": [("C",)]}
