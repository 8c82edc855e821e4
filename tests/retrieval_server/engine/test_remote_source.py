"""The engine in front of a remote source: each query travels alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from retrieval_server.errors import SearchFailedError
from retrieval_server.folder.passages import Passage
from retrieval_server.source import RemoteSource, ScoredPassage, SourceDescription

from ..running import engine_of, until


class Gated(RemoteSource):
    """Answers a query when its gate is opened; ``"open..."`` at once, ``"dead..."`` never well."""

    description = SourceDescription("gated")

    def __init__(self, concurrency: int):
        self.concurrency = concurrency
        self.requests: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.closed = False

    async def answer(self, query, topk):
        self.requests.append(query)
        if query.startswith("dead"):
            raise SearchFailedError(502, "web_refused", f"{query} is dead")
        if not query.startswith("open"):
            await self.gates.setdefault(query, asyncio.Event()).wait()
        return (ScoredPassage(Passage(query, query), 1.0),) * topk

    async def close(self):
        self.closed = True


@asynccontextmanager
async def running(concurrency=4):
    """A source behind an engine, and the function that starts a request."""
    source = Gated(concurrency)
    async with engine_of(source) as engine:

        async def ask(*queries):
            task = asyncio.create_task(engine.search(queries, 1))
            await asyncio.sleep(0)
            return task

        yield source, ask
    assert source.closed


def ids(answers):
    return [[hit.passage.id for hit in answer] for answer in answers]


async def test_a_slow_query_holds_up_no_other():
    async with running() as (source, ask):
        slow = await ask("slow")
        for number in range(20):
            assert ids(await (await ask(f"open {number}"))) == [[f"open {number}"]]
        assert not slow.done()
        source.gates["slow"].set()
        assert ids(await slow) == [["slow"]]


async def test_at_most_concurrency_queries_are_under_way_and_the_rest_wait_their_turn():
    async with running(concurrency=2) as (source, ask):
        task = await ask("a", "b", "c", "d")
        await until(lambda: len(source.gates) == 2)
        await asyncio.sleep(0.01)
        assert source.requests == ["a", "b"]
        source.gates["b"].set()
        await until(lambda: source.requests == ["a", "b", "c"])
        source.gates["c"].set()
        await until(lambda: source.requests == ["a", "b", "c", "d"])
        source.gates["a"].set()
        source.gates["d"].set()
        assert ids(await task) == [["a"], ["b"], ["c"], ["d"]]


async def test_who_leaves_the_line_is_never_asked_for():
    async with running(concurrency=1) as (source, ask):
        first, second = await ask("a"), await ask("b")
        await until(lambda: source.requests == ["a"])
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        source.gates["a"].set()
        await first
        assert ids(await (await ask("open"))) == [["open"]]
        assert source.requests == ["a", "open"]


async def test_a_query_that_fails_fails_alone_and_what_was_found_beside_it_is_kept():
    async with running() as (source, ask):
        mixed, other = await ask("open 1", "dead", "open 2"), await ask("open 3")
        with pytest.raises(SearchFailedError, match="dead is dead"):
            await mixed
        assert ids(await other) == [["open 3"]]
        await (await ask("open 1", "open 2"))
        assert sorted(source.requests) == ["dead", "open 1", "open 2", "open 3"]


async def test_stopping_does_not_wait_for_the_far_end():
    async with running() as (source, ask):
        await ask("never answered")
        await until(lambda: source.requests)


def test_a_failed_search_is_answered_with_its_status_word_reason_and_retry_after(serve):
    class Broken(Gated):
        async def answer(self, query, topk):
            raise SearchFailedError(503, "web_unavailable", "the far end is silent", retry_after=7)

    with serve(lambda: Broken(1)) as client:
        answer = client.post("/retrieve", json={"query": "x"})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "7"
        assert answer.json() == {"error": "web_unavailable", "reason": "the far end is silent"}
        refused = 'retrieval_rejections_total{index="default",reason="web_unavailable"} 1.0'
        assert refused in client.get("/metrics").text
        ready = client.get("/ready").json()
        assert (ready["backend"], ready["passages"]) == ("gated", None)
