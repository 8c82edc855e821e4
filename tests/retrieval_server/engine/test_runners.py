"""Runners between a queue and a list: they need no engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from retrieval_server.engine.jobs import JobBatch, QueryJob, now
from retrieval_server.engine.runners import StagedRunner, StageThreads
from retrieval_server.source import SourceDescription, StagedSource

from ..running import until


class Echo(StagedSource):
    """Answers a query with itself; "bad first" and "bad second" break that stage."""

    description = SourceDescription("echo")

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
async def test_a_batch_that_fails_is_delivered_with_its_error_and_the_next_one_is_served(overlap):
    stages = StageThreads()
    async with running(lambda take, give: StagedRunner(Echo(), stages, take, give, overlap)) as ends:
        waiting, delivered = ends
        for query in ("bad first", "bad second", "good"):
            waiting.put_nowait(batch(query))
        await until(lambda: len(delivered) == 3)
        outcomes = {
            done.jobs[0].query: (str(done.error), done.answers, set(done.seconds)) for done in delivered
        }
    stages.end()
    assert outcomes == {
        "bad first": ("first", None, set()),
        "bad second": ("second", None, {"encode"}),
        "good": ("None", [("GOOD",)], {"encode", "search"}),
    }


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_panic_fails_its_batch_and_the_next_one_is_served(overlap):
    """A panic of a tokenizer in Rust is a BaseException, which ends a task that only expects Exception."""
    source, stages = Echo(), StageThreads()
    source.prepare = Mock(side_effect=[Panic("out of bounds"), ["GOOD"]])
    async with running(lambda take, give: StagedRunner(source, stages, take, give, overlap)) as ends:
        waiting, delivered = ends
        for query in ("panic", "good"):
            waiting.put_nowait(batch(query))
        await until(lambda: len(delivered) == 2)
    stages.end()
    assert repr(delivered[0].error) == "RuntimeError('Panic: out of bounds')"
    assert delivered[1].answers == [("GOOD",)]
