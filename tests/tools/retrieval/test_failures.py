"""The retrieval client against a real HTTP server that misbehaves in every way it can."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from aiohttp import web

from rag_r1.protocols import Document, Failure
from rag_r1.protocols.actions import NO_ANSWER
from rag_r1.tools import RetrievalClient, RetrieverConfig
from tests.fakes.json_server import JsonStub
from tests.fakes.retriever import Retriever, answer, client_of, run


@pytest.mark.parametrize("token, sent", [(" a-secret\n", "Bearer a-secret"), ("", None), (None, None)])
def test_the_servers_token_comes_from_the_environment_and_reaches_no_log(token, sent, monkeypatch, caplog):
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RETRIEVAL_TOKEN", token)

    async def main():
        with JsonStub(lambda questions: (401, '{"error": "unauthorized"}')) as server:
            client = RetrievalClient(RetrieverConfig(url=server.url))
            [failure] = await client.search(["a"])
            assert isinstance(failure, Failure) and failure.reason == NO_ANSWER
            await client.close()
        headers = [questions.headers.get("Authorization") for questions in server.asked]
        assert headers == [sent]  # and a refusal is not asked for again

    with caplog.at_level("DEBUG"):
        run(main())
    assert "401" in caplog.text and "a-secret" not in caplog.text


BROKEN = {
    "HTTP 500": lambda q: web.Response(status=500),
    "HTTP 503 with Retry-After": lambda q: web.Response(status=503, headers={"Retry-After": "0"}),
    "HTTP 429": lambda q: web.Response(status=429),
    "truncated JSON": lambda q: web.Response(text='{"result": [[{"docum'),
    "not JSON": lambda q: web.Response(text="<html>"),
    "deeply nested JSON": lambda q: web.Response(text="[" * 100_000),
    "wrong top level": lambda q: web.json_response([1, 2]),
    "one result too few": lambda q: web.json_response({"result": [[]] * (len(q) - 1)}),
    "one result too many": lambda q: web.json_response({"result": [[]] * (len(q) + 1)}),
    "a result that is no list": lambda q: web.json_response({"result": ["x"] * len(q)}),
    "a document without contents": lambda q: web.json_response(
        {"result": [[{"document": {"id": "1"}}]] * len(q)}
    ),
    "a document that is null": lambda q: web.json_response({"result": [[None]] * len(q)}),
    "not UTF-8": lambda q: web.Response(body=b'{"result": "\xff"}'),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_fault_is_retried_and_then_forgotten(fault):
    left = 2

    async def flaky(queries):
        nonlocal left
        left -= 1
        return BROKEN[fault](queries) if left >= 0 else answer(queries)

    async with client_of(flaky) as (client, requests):
        results = await client.search(["a", "b"])
        assert [docs[0].id for docs in results] == ["id a", "id b"]
        assert (len(requests), client.stats.retried, client.stats.failed) == (3, 2, 0)


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_fault_that_stays_gives_a_bounded_failure_which_is_not_cached(fault):
    broken = True

    async def handler(queries):
        return BROKEN[fault](queries) if broken else answer(queries)

    async with client_of(handler) as (client, requests):
        assert await client.search(["a", "b"]) == [Failure(NO_ANSWER, "retriever")] * 2
        assert len(requests) == 3
        broken = False
        assert (await client.search(["a"]))[0][0].id == "id a"


async def test_a_request_that_the_server_refuses_is_not_repeated():
    async def refuse(queries):
        return web.Response(status=422)

    async with client_of(refuse) as (client, requests):
        assert await client.search(["a"]) == [Failure(NO_ANSWER, "retriever")]
        assert len(requests) == 1


async def test_a_server_that_never_answers_costs_a_timeout_and_not_the_run():
    async def hang(queries):
        await asyncio.Event().wait()

    async with client_of(hang, timeout_s=0.05, retries=1) as (client, requests):
        assert await client.search(["a"]) == [Failure(NO_ANSWER, "retriever")]
        assert len(requests) == 2


async def test_a_dead_server_gives_failures():
    client = RetrievalClient(RetrieverConfig(url="http://127.0.0.1:9", retries=1, backoff_s=0.0))
    assert await client.search(["a", "b"]) == [Failure(NO_ANSWER, "retriever")] * 2
    await client.close()


async def test_closing_the_client_releases_those_who_wait():
    async def hang(queries):
        await asyncio.Event().wait()

    async with client_of(hang) as (client, requests):
        waiting = asyncio.create_task(client.search(["a"]))
        while not requests:
            await asyncio.sleep(0)
        await client.close()
        assert await waiting == [Failure(NO_ANSWER, "retriever")]


HUGE = 10**400


def scored(score, contents="text"):
    """An answer's JSON for one query, with this score as it stands."""
    return f'[{{"document": {{"id": "1", "contents": "{contents}"}}, "score": {score}}}]'


@pytest.mark.parametrize("score", [str(HUGE), str(-HUGE), "1e999", "NaN", "-Infinity"])
async def test_a_score_that_is_no_number_of_this_world_costs_its_own_query_only(score):
    async def one_is_odd(queries):
        lists = [scored(score if query == "odd" else 1.5, query) for query in queries]
        return web.Response(text=f'{{"result": [{", ".join(lists)}]}}')

    async with client_of(one_is_odd, gather_s=0.05, retries=1) as (client, requests):
        first, sibling = await asyncio.gather(client.search(["a", "odd"]), client.search(["b"]))
        assert [first[0], sibling[0]] == [[Document("1", query, 1.5)] for query in "ab"]
        assert first[1] == Failure(NO_ANSWER, "retriever")
        assert "finite number" in first[1].detail
        # What was answered is not asked for again.
        assert [request["queries"] for request in requests] == [["a", "odd", "b"], ["odd"]]
        assert client.stats.failed == 1 and (await client.search(["a"]))[0] == first[0]


async def test_a_fault_in_one_querys_documents_is_asked_about_again_and_the_order_is_kept():
    left = 1

    async def second_is_broken_once(queries):
        nonlocal left
        result = [[{"contents": query}] for query in queries]
        if left:
            left, result[1] = 0, [None]
        return web.json_response({"result": result})

    async with client_of(second_is_broken_once) as (client, requests):
        assert [matches[0].contents for matches in await client.search(["a", "b", "c"])] == ["a", "b", "c"]
        assert [request["queries"] for request in requests] == [["a", "b", "c"], ["b"]]
        assert (client.stats.retried, client.stats.failed) == (1, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_token_goes_nowhere(status, monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "a-secret")

    with Retriever({"1": "elsewhere"}) as other:

        async def redirect(queries):
            return web.Response(status=status, headers={"Location": f"{other.url}/retrieve"})

        async with client_of(redirect) as (client, requests):
            [failure] = await client.search(["a"])
            assert failure == Failure(NO_ANSWER, "retriever") and str(status) in failure.detail
            assert len(requests) == 1 and other.asked == []


async def test_an_answer_is_not_unpacked():
    async def packed(queries):
        body = gzip.compress(json.dumps({"result": [[]] * len(queries)}).encode())
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with client_of(packed, retries=0) as (client, _):
        assert await client.search(["a"]) == [Failure(NO_ANSWER, "retriever")]


async def test_a_time_to_wait_in_figures_of_another_script_is_none():
    async def busy(queries):
        return web.Response(status=503, headers={"Retry-After": "\u00b2"})

    async with client_of(busy, retries=1) as (client, requests):
        assert await client.search(["a"]) == [Failure(NO_ANSWER, "retriever")]
        assert len(requests) == 2
