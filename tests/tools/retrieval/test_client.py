"""What the retrieval client sends to a real HTTP server: one request for several turns, and nothing twice."""

from __future__ import annotations

import asyncio

from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.protocols import CachedDocuments, Document, Failure
from rag_r1.protocols.actions import NO_ANSWER
from tests.fakes.retriever import answer, client_of, right, run


async def test_queries_of_a_turn_go_out_in_one_request_and_come_back_in_order():
    async with client_of(right) as (client, requests):
        assert await client.search(["b", "a", "c"]) == [
            [Document(f"id {q}", f"about {q}", 0.5)] for q in ("b", "a", "c")
        ]
        assert requests == [{"queries": ["b", "a", "c"], "topk": 2, "return_scores": True}]


async def test_r1_searchers_wire_is_spoken_too():
    async def answers(queries: list[str]) -> web.Response:
        matches = [[f"id {q}\tabout\t{q}", "no id"] for q in queries]
        return web.json_response({"queries": queries, "answers": matches})

    async with client_of(answers, wire="queries") as (client, requests):
        assert await client.search(["a", "b"]) == [
            [Document(f"id {q}", f"about\t{q}"), Document("", "no id")] for q in ("a", "b")
        ]
        assert requests == [{"queries": ["a", "b"], "k": 2}]


async def test_a_query_in_flight_is_awaited_and_a_known_one_is_not_sent_again():
    gate = asyncio.Event()

    async def slow(queries):
        await gate.wait()
        return answer(queries)

    async with client_of(slow) as (client, requests):
        siblings = [asyncio.create_task(client.search(["same", f"own {i}"])) for i in range(8)]
        while client.stats.sent < 9:
            await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*siblings)
        assert all(result[0] == results[0][0] for result in results)
        sent = [query for request in requests for query in request["queries"]]
        assert sorted(sent) == [*(f"own {i}" for i in range(8)), "same"]
        before, known = len(requests), await client.search(["same", "own 3"])
        assert len(requests) == before
        assert all(isinstance(documents, CachedDocuments) for documents in known)
        # Of the siblings, one has sent the query that they share.
        kept = [[isinstance(documents, CachedDocuments) for documents in result] for result in results]
        assert kept == [[False, False], *[[True, False]] * 7]
        assert (client.stats.joined, client.stats.cached, client.stats.sent) == (7, 2, 9)


async def test_turns_of_one_moment_share_a_request_and_each_gets_its_own_answers():
    async with client_of(right, gather_s=0.05) as (client, requests):
        results = await asyncio.gather(*(client.search([f"a{i}", f"b{i}"]) for i in range(3)))
        assert [[matches[0].id for matches in result] for result in results] == [
            [f"id a{i}", f"id b{i}"] for i in range(3)
        ]
        assert [request["queries"] for request in requests] == [["a0", "b0", "a1", "b1", "a2", "b2"]]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    most=st.integers(1, 8),
    gather_s=st.sampled_from([0.0, 0.001]),
)
def test_no_request_has_more_than_its_share_and_no_turn_is_divided(sizes, most, gather_s):
    async def main():
        async with client_of(right, max_queries=most, gather_s=gather_s) as (client, requests):
            turns = [[f"{turn}-{i}" for i in range(size)] for turn, size in enumerate(sizes)]
            results = await asyncio.gather(*map(client.search, turns))
            assert [[matches[0].id for matches in result] for result in results] == [
                [f"id {query}" for query in turn] for turn in turns
            ]
            for request in requests:
                held = [turn for turn in turns if turn[0] in request["queries"]]
                assert request["queries"] == [query for turn in held for query in turn]
                assert len(request["queries"]) <= most or len(held) == 1
            assert sum(len(request["queries"]) for request in requests) == sum(sizes)

    run(main())


async def test_a_turn_that_the_server_refuses_takes_no_other_with_it():
    async def picky(queries):
        return web.Response(status=422) if "bad" in queries else answer(queries)

    async with client_of(picky, gather_s=0.05) as (client, requests):
        good, bad, fine = await asyncio.gather(*(client.search([q]) for q in ("good", "bad", "fine")))
        assert (good[0][0].id, fine[0][0].id) == ("id good", "id fine")
        assert bad == [Failure(NO_ANSWER, "retriever")]
        assert [request["queries"] for request in requests][0] == ["good", "bad", "fine"]
        assert sorted(request["queries"] for request in requests[1:]) == [["bad"], ["fine"], ["good"]]


async def test_turns_whose_shared_request_fails_are_tried_again_each_on_its_own():
    async def fails_once(queries):
        return web.Response(status=500) if len(queries) > 1 else answer(queries)

    async with client_of(fails_once, gather_s=0.05, retries=1) as (client, requests):
        matches = await asyncio.gather(*(client.search([q]) for q in "abc"))
        assert [result[0][0].id for result in matches] == ["id a", "id b", "id c"]
        assert len(requests) == 4 and (client.stats.requests, client.stats.retried) == (4, 3)


async def test_closing_the_client_releases_those_whose_request_has_not_left():
    async with client_of(right, gather_s=20.0) as (client, requests):
        waiting = asyncio.create_task(client.search(["a"]))
        await asyncio.sleep(0)
        await client.close()
        assert await waiting == [Failure(NO_ANSWER, "retriever")] and not requests


async def test_a_cache_size_of_zero_asks_again():
    async with client_of(right, cache_size=0) as (client, requests):
        await client.search(["a"])
        await client.search(["a"])
        assert len(requests) == 2


async def test_a_trajectory_that_is_cancelled_does_not_take_its_siblings_answer_away():
    gate = asyncio.Event()

    async def slow(queries):
        await gate.wait()
        return answer(queries)

    async with client_of(slow) as (client, requests):
        first = asyncio.create_task(client.search(["same"]))
        while not requests:
            await asyncio.sleep(0)
        second = asyncio.create_task(client.search(["same"]))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        assert (await second)[0][0].id == "id same"
        assert len(requests) == 1
