"""The engine, over a retriever that is stepped by hand and over real indexes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_server.engine.engine import Engine
from retrieval_server.engine.metrics import Metrics
from retrieval_server.engine.options import EngineOptions
from retrieval_server.errors import OverloadedError
from retrieval_server.search.index_source import IndexSource
from retrieval_server.source import SourceDescription, StagedSource

from ..running import engine_of, until
from ..same_answers import assert_same_answers, plain


class Stepped(StagedSource):
    """A source that echoes; each stage waits while it is shut, and notes its batches."""

    description = SourceDescription("echo")

    def __init__(self):
        self.encoding, self.finding = threading.Event(), threading.Event()
        self.encoding.set()
        self.finding.set()
        self.prepared: list[list[str]] = []
        self.searched: list[list[str]] = []
        self.poison: set[str] = set()

    def warm_up(self):
        pass

    def prepare(self, queries):
        self.prepared.append(list(queries))
        assert self.encoding.wait(30)
        if self.poison & set(queries):
            raise ValueError("poison")
        return list(queries)

    def find(self, prepared, topks):
        self.searched.append(list(prepared))
        assert self.finding.wait(30)
        return [(query,) * topk for query, topk in zip(prepared, topks, strict=True)]


@asynccontextmanager
async def running(source=None, **options):
    """A loaded engine, its source, and the function that reads one of its metrics."""
    source, metrics = source or Stepped(), Metrics()

    def metric(name):
        prefix = f'retrieval_{name}{{index="towns"}} '
        lines = metrics.page().decode().splitlines()
        return float(next(line for line in lines if line.startswith(prefix)).split()[-1])

    async with engine_of(source, metrics.of("towns"), **options) as engine:
        try:
            yield engine, source, metric
        finally:
            if isinstance(source, Stepped):
                source.encoding.set()
                source.finding.set()


async def start(engine, *requests):
    """Each request as a task that has reached the queue."""
    tasks = [asyncio.create_task(engine.search(queries, 1)) for queries in requests]
    await asyncio.sleep(0)
    return tasks


async def test_queries_of_many_requests_are_encoded_together_and_answered_apart():
    async with running() as (engine, stepped, _):
        stepped.encoding.clear()
        first = await start(engine, ["a"])
        await until(lambda: stepped.prepared)
        others = await start(engine, ["b", "", "c"], ["d"], [])
        stepped.encoding.set()
        assert await asyncio.gather(*first, *others) == [[("a",)], [("b",), (), ("c",)], [("d",)], []]
        assert stepped.prepared == [["a"], ["b", "c", "d"]]


async def test_topk_is_each_requests_own():
    async with running() as (engine, stepped, _):
        both = await asyncio.gather(engine.search(["a"], 3), engine.search(["a"], 1))
        assert both == [[("a",) * 3], [("a",)]]


async def test_where_stages_share_the_cores_a_batch_goes_through_both_before_the_next_starts():
    stepped = Stepped()
    stepped.overlaps = False
    async with running(stepped) as (engine, stepped, _):
        stepped.finding.clear()
        first = await start(engine, ["a"])
        await until(lambda: stepped.searched)
        others = await start(engine, ["b"], ["c"])
        await asyncio.sleep(0.05)
        assert stepped.prepared == [["a"]]
        stepped.finding.set()
        assert await asyncio.gather(*first, *others) == [[("a",)], [("b",)], [("c",)]]
        assert stepped.prepared == [["a"], ["b", "c"]]


@pytest.mark.parametrize("overlaps, overlap", [(True, None), (False, True)])
async def test_stages_overlap_or_not_as_the_source_or_the_options_say(overlaps, overlap):
    source = Stepped()
    source.overlaps = overlaps
    async with running(source, overlap=overlap) as (engine, stepped, _):
        stepped.finding.clear()
        tasks = await start(engine, ["a"])
        await until(lambda: stepped.searched == [["a"]])
        tasks += await start(engine, ["b"])
        await until(lambda: stepped.prepared == [["a"], ["b"]])
        assert not tasks[0].done()
        stepped.finding.set()
        assert await asyncio.gather(*tasks) == [[("a",)], [("b",)]]


async def test_a_source_of_several_workers_gets_as_many_batches_at_once():
    stepped = Stepped()
    stepped.encoders, stepped.searchers = 3, 2
    async with running(stepped, max_batch=2) as (engine, stepped, _):
        stepped.encoding.clear()
        tasks = await start(engine, *[[query] for query in "abcdef"])
        await until(lambda: len(stepped.prepared) == 3)
        stepped.finding.clear()
        stepped.encoding.set()
        await until(lambda: len(stepped.searched) == 2)
        assert sorted(sum(stepped.prepared[:3], [])) == list("abcdef")
        stepped.finding.set()
        assert await asyncio.gather(*tasks) == [[(query,)] for query in "abcdef"]


async def test_a_stop_that_was_cancelled_ends_once_and_the_next_one_waits_for_it():
    source, closing, may_close, closed = Stepped(), threading.Event(), threading.Event(), []

    def close():
        closing.set()
        assert may_close.wait(30)
        closed.append(source)

    source.close = close
    engine = await Engine.start(lambda: source, EngineOptions(), Metrics().of("towns"))
    first = asyncio.create_task(engine.stop())
    await until(closing.is_set)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    assert first.cancelled() and not second.done()
    may_close.set()
    await second
    assert closed == [source]


async def test_a_source_that_opens_when_nobody_waits_for_it_any_more_is_closed():
    source, loop, given_up = Stepped(), asyncio.get_running_loop(), threading.Event()
    source.close = Mock()

    def give_up():
        starting.cancel()
        given_up.set()

    def load():
        loop.call_soon_threadsafe(give_up)
        assert given_up.wait(30)
        return source

    starting = asyncio.create_task(Engine.start(load, EngineOptions(), Metrics().of("towns")))
    with pytest.raises(asyncio.CancelledError):
        await starting
    source.close.assert_called_once_with()


async def test_equal_queries_under_way_are_computed_once_and_then_cached():
    async with running() as (engine, stepped, metric):
        stepped.encoding.clear()
        tasks = await start(engine, ["a", "a"], ["a"])
        stepped.encoding.set()
        assert await asyncio.gather(*tasks) == [[("a",), ("a",)], [("a",)]]
        assert await engine.search(["a"], 1) == [("a",)]
        assert stepped.prepared == [["a"]]
        assert [metric(f"{name}_total") for name in ("queries", "joined", "cache_hits")] == [4, 2, 1]


async def test_cache_and_single_flight_can_be_switched_off():
    async with running(cache_size=0, single_flight=False) as (engine, stepped, metric):
        await asyncio.gather(engine.search(["a", "a"], 1), engine.search(["a"], 1))
        await engine.search(["a"], 1)
        assert sum(len(batch) for batch in stepped.prepared) == 4
        assert metric("cache_hits_total") == metric("joined_total") == engine.cache_entries == 0


async def test_the_least_recently_used_answer_is_forgotten_first():
    async with running(cache_size=2) as (engine, stepped, metric):
        for query in ["a", "b", "a", "c", "b", "a", "c"]:
            assert await engine.search([query], 1) == [(query,)]
        assert [query for batch in stepped.prepared for query in batch] == ["a", "b", "c", "b", "a", "c"]
        assert metric("cache_hits_total") == 1 and engine.cache_entries == 2


@settings(max_examples=20)
@given(size=st.integers(1, 4), queries=st.lists(st.sampled_from("abcdef"), max_size=20))
async def test_the_cache_holds_the_last_distinct_queries(size, queries):
    async with running(cache_size=size) as (engine, stepped, _):
        for query in queries:
            await engine.search([query], 1)
        before = len(stepped.prepared)
        last = list(dict.fromkeys(reversed(queries)))[:size]
        for query in last:
            await engine.search([query], 1)
        assert len(stepped.prepared) == before
        others = [query for query in "abcdef" if query not in last]
        for query in others:
            await engine.search([query], 1)
        assert len(stepped.prepared) == before + len(others)


async def test_a_query_that_nobody_waits_for_any_more_is_not_computed():
    async with running() as (engine, stepped, metric):
        stepped.encoding.clear()
        first = await start(engine, ["a"])
        await until(lambda: stepped.prepared)
        leaver, stayer = await start(engine, ["gone", "shared"], ["shared"])
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        assert engine.queue_length == 1 and engine.outstanding == 2
        stepped.encoding.set()
        assert await asyncio.gather(*first, stayer) == [[("a",)], [("shared",)]]
        assert stepped.prepared == [["a"], ["shared"]]
        assert metric("dropped_total") == 1 and engine.outstanding == 0
        assert await engine.search(["gone"], 1) == [("gone",)]


async def test_beyond_the_bound_a_request_is_refused_at_once_and_whole():
    async with running(max_queue=3) as (engine, stepped, metric):
        stepped.encoding.clear()
        tasks = await start(engine, ["a", "b"])
        with pytest.raises(OverloadedError, match="2 queries under way, at most 3") as refusal:
            await engine.search(["c", "d"], 1)
        assert refusal.value.retry_after >= 1 and refusal.value.reason == "queue_full"
        tasks += await start(engine, ["a"])  # equal to one under way: costs nothing
        tasks += await start(engine, ["c"])
        stepped.encoding.set()
        assert await asyncio.gather(*tasks) == [[("a",), ("b",)], [("a",)], [("c",)]]
        assert "d" not in sum(stepped.prepared, [])
        assert engine.outstanding == 0
        assert await engine.search(["d", "e", "f"], 1) == [("d",), ("e",), ("f",)]


async def test_a_request_that_would_miss_its_deadline_is_refused_at_once():
    async with running(deadline_s=10.0, max_batch=1) as (engine, stepped, _):
        engine._latency.batch_done(1, started=0.0, finished=4.0)
        stepped.encoding.clear()
        tasks = await start(engine, ["a", "b", "c"])
        with pytest.raises(OverloadedError, match="take 16 s; the deadline is 10 s") as refusal:
            await engine.search(["d"], 1)
        assert (refusal.value.reason, refusal.value.retry_after) == ("deadline", 12)
        stepped.encoding.set()
        await asyncio.gather(*tasks)


async def test_a_request_that_would_wait_too_long_is_refused_at_once_and_an_idle_engine_takes_any():
    async with running(max_delay_s=2.0, max_batch=1) as (engine, stepped, _):
        engine._latency.batch_done(1, started=0.0, finished=4.0)
        stepped.encoding.clear()
        tasks = await start(engine, ["a", "b", "c"])  # 12 s of work, but nothing to wait for
        with pytest.raises(OverloadedError, match="take 16.00 s; --max-delay is 2 s") as refusal:
            await engine.search(["d"], 1)
        assert (refusal.value.reason, refusal.value.retry_after) == ("delay", 12)
        stepped.encoding.set()
        await asyncio.gather(*tasks)


async def test_where_batches_scatter_less_is_accepted():
    async with running(max_delay_s=4.0, max_batch=1) as (engine, stepped, _):
        for end in range(10, 210, 10):
            engine._latency.batch_done(1, started=end - (1.0 if end % 20 else 2.0), finished=end)
        stepped.encoding.clear()
        tasks = await start(engine, ["a"])
        assert engine._latency.expected(2) < 4.0 < engine._latency.upper_bound(2)
        with pytest.raises(OverloadedError) as refusal:
            await engine.search(["b"], 1)
        assert refusal.value.reason == "delay"
        stepped.encoding.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("number", [1, 5])
async def test_a_query_that_breaks_the_backend_takes_no_other_with_it(number):
    async with running() as (engine, stepped, metric):
        stepped.poison = {"bad"}
        stepped.encoding.clear()
        tasks = await start(engine, *[[f"good {i}"] for i in range(number - 1)], ["bad"])
        stepped.encoding.set()
        *good, bad = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(bad, ValueError)
        assert good == [[(f"good {i}",)] for i in range(number - 1)]
        assert engine.outstanding == 0
        stepped.poison = set()
        assert await engine.search(["bad"], 1) == [("bad",)]


async def test_a_failure_whose_asker_has_gone_is_nobodys(caplog):
    async with running() as (engine, stepped, metric):
        stepped.poison = {"bad"}
        stepped.encoding.clear()
        (task,) = await start(engine, ["bad"])
        await until(lambda: stepped.prepared)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stepped.encoding.set()
        await until(lambda: engine.outstanding == 0)
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("kind", ["bm25", "dense"])
async def test_64_concurrent_askers_get_what_one_by_one_gives(kind, bm25_index, dense_index):
    retriever = IndexSource.open({"bm25": bm25_index, "dense": dense_index}[kind], device="cpu")
    queries = [f"{retriever._passages[i % 20].contents.split()[i // 20]} river {i}" for i in range(64)]
    expected = [retriever.search([query], 3)[0] for query in queries]
    async with running(retriever) as (engine, _, metric):
        answers = await asyncio.gather(*(engine.search([query], 3) for query in queries))
        got, expected_answers = [plain(answer) for (answer,) in answers], [plain(hits) for hits in expected]
        assert_same_answers(got, expected_answers, retriever.description.guarantee)
        assert metric("batch_size_count") < 64
