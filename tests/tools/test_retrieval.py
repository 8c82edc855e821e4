"""The retrieval client against a real HTTP server that misbehaves in every way it can."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.protocols import Document, Failure
from rag_r1.tools import RetrievalClient, RetrieverConfig, make_searcher, shared_searcher
from rag_r1.tools.retrieval import FAILURE_TEXT
from rag_r1.tools.wire import MAX_DOCUMENT_CHARS, MAX_ID_CHARS, WIRES, parse_answers, parse_results

Handler = Callable[[list[str]], Awaitable[web.Response]]


def answer(queries: list[str]) -> web.Response:
    """A right answer: one document for each query, which names the query."""
    return web.json_response(
        {
            "result": [
                [{"document": {"id": f"id {q}", "contents": f"about {q}"}, "score": 0.5}] for q in queries
            ]
        }
    )


@asynccontextmanager
async def client_of(handler: Handler, **options):
    """A client, and the list of the requests that its server got."""
    requests: list[dict] = []

    async def retrieve(request: web.Request) -> web.Response:
        requests.append(await request.json())
        return await handler(requests[-1]["queries"])

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    app.router.add_post("/queries", retrieve)
    async with TestServer(app) as server:
        config = {"url": str(server.make_url("/")), "backoff_s": 0.0, "retries": 2, "topk": 2, **options}
        client = RetrievalClient(RetrieverConfig(**config))
        try:
            yield client, requests
        finally:
            await client.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def right(queries: list[str]) -> web.Response:
    return answer(queries)


def test_queries_of_a_turn_go_out_in_one_request_and_come_back_in_order():
    async def main():
        async with client_of(right) as (client, requests):
            assert await client.search(["b", "a", "c"]) == [
                [Document(f"id {q}", f"about {q}", 0.5)] for q in ("b", "a", "c")
            ]
            assert requests == [{"queries": ["b", "a", "c"], "topk": 2, "return_scores": True}]

    run(main())


def test_r1_searchers_wire_is_spoken_too():
    async def answers(queries: list[str]) -> web.Response:
        found = [[f"id {q}\tabout\t{q}", "no id"] for q in queries]
        return web.json_response({"queries": queries, "answers": found})

    async def main():
        async with client_of(answers, wire="queries") as (client, requests):
            assert await client.search(["a", "b"]) == [
                [Document(f"id {q}", f"about\t{q}"), Document("", "no id")] for q in ("a", "b")
            ]
            assert requests == [{"queries": ["a", "b"], "k": 2}]

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"result": [["x"]]},
        {"answers": "x"},
        {"answers": [["x"], ["y"]]},
        {"answers": [[1]]},
        {"answers": [[{"contents": "x"}]]},
        {"answers": ["x"]},
    ],
)
def test_an_answer_in_another_shape_than_r1_searchers_is_refused(data):
    with pytest.raises(ValueError):
        parse_answers(data, 1, 2)


@pytest.mark.parametrize(
    ("url", "wire", "endpoint"),
    [
        ("http://h:1", "queries", "http://h:1/queries"),
        ("http://h:1/queries/", "queries", "http://h:1/queries"),
        ("http://h:1/retrieve", "queries", "http://h:1/queries"),
        ("http://h:1/queries", "retrieve", "http://h:1/retrieve"),
    ],
)
def test_the_wire_chooses_the_path_behind_the_address(url, wire, endpoint):
    assert RetrieverConfig(url=url, wire=wire).endpoint == endpoint


def test_an_unknown_wire_is_named():
    with pytest.raises(ValueError, match="rag_r1.retriever.wire must be retrieve or queries, not 'soap'"):
        RetrieverConfig(wire="soap")


@pytest.mark.parametrize("token, sent", [(" a-secret\n", "Bearer a-secret"), ("", None), (None, None)])
def test_the_servers_token_comes_from_the_environment_and_reaches_no_log(token, sent, monkeypatch, caplog):
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RETRIEVAL_TOKEN", token)

    async def main():
        headers = []

        async def retrieve(request: web.Request) -> web.Response:
            headers.append(request.headers.get("Authorization"))
            return web.json_response({"error": "unauthorized"}, status=401)

        app = web.Application()
        app.router.add_post("/retrieve", retrieve)
        async with TestServer(app) as server:
            client = RetrievalClient(RetrieverConfig(url=str(server.make_url("/"))))
            [failure] = await client.search(["a"])
            assert isinstance(failure, Failure) and failure.reason == FAILURE_TEXT
            await client.close()
        assert headers == [sent]  # and a refusal is not asked for again

    with caplog.at_level("DEBUG"):
        run(main())
    assert "401" in caplog.text and "a-secret" not in caplog.text


def test_a_query_in_flight_is_awaited_and_a_known_one_is_not_sent_again():
    async def main():
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
            before = len(requests)
            await client.search(["same", "own 3"])
            assert len(requests) == before
            assert (client.stats.joined, client.stats.cached, client.stats.sent) == (7, 2, 9)

    run(main())


def test_turns_of_one_moment_share_a_request_and_each_gets_its_own_answers():
    async def main():
        async with client_of(right, gather_s=0.05) as (client, requests):
            results = await asyncio.gather(*(client.search([f"a{i}", f"b{i}"]) for i in range(3)))
            assert [[found[0].id for found in result] for result in results] == [
                [f"id a{i}", f"id b{i}"] for i in range(3)
            ]
            assert [request["queries"] for request in requests] == [["a0", "b0", "a1", "b1", "a2", "b2"]]

    run(main())


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
            assert [[found[0].id for found in result] for result in results] == [
                [f"id {query}" for query in turn] for turn in turns
            ]
            for request in requests:
                held = [turn for turn in turns if turn[0] in request["queries"]]
                assert request["queries"] == [query for turn in held for query in turn]
                assert len(request["queries"]) <= most or len(held) == 1
            assert sum(len(request["queries"]) for request in requests) == sum(sizes)

    run(main())


def test_a_turn_that_the_server_refuses_takes_no_other_with_it():
    async def main():
        async def picky(queries):
            return web.Response(status=422) if "bad" in queries else answer(queries)

        async with client_of(picky, gather_s=0.05) as (client, requests):
            good, bad, fine = await asyncio.gather(*(client.search([q]) for q in ("good", "bad", "fine")))
            assert (good[0][0].id, fine[0][0].id) == ("id good", "id fine")
            assert bad == [Failure(FAILURE_TEXT, "retriever")]
            assert [request["queries"] for request in requests][0] == ["good", "bad", "fine"]
            assert sorted(request["queries"] for request in requests[1:]) == [["bad"], ["fine"], ["good"]]

    run(main())


def test_turns_whose_shared_request_fails_are_tried_again_each_on_its_own():
    async def main():
        async def fails_once(queries):
            return web.Response(status=500) if len(queries) > 1 else answer(queries)

        async with client_of(fails_once, gather_s=0.05, retries=1) as (client, requests):
            found = await asyncio.gather(*(client.search([q]) for q in "abc"))
            assert [result[0][0].id for result in found] == ["id a", "id b", "id c"]
            assert len(requests) == 4 and (client.stats.requests, client.stats.retried) == (4, 3)

    run(main())


def test_closing_the_client_releases_those_whose_request_has_not_left():
    async def main():
        async with client_of(right, gather_s=20.0) as (client, requests):
            waiting = asyncio.create_task(client.search(["a"]))
            await asyncio.sleep(0)
            await client.close()
            assert await waiting == [Failure(FAILURE_TEXT, "retriever")] and not requests

    run(main())


def test_a_cache_size_of_zero_asks_again():
    async def main():
        async with client_of(right, cache_size=0) as (client, requests):
            await client.search(["a"])
            await client.search(["a"])
            assert len(requests) == 2

    run(main())


def test_a_trajectory_that_is_cancelled_does_not_take_its_siblings_answer_away():
    async def main():
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

    run(main())


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
def test_a_fault_is_retried_and_then_forgotten(fault):
    async def main():
        left = 2

        async def flaky(queries):
            nonlocal left
            left -= 1
            return BROKEN[fault](queries) if left >= 0 else answer(queries)

        async with client_of(flaky) as (client, requests):
            results = await client.search(["a", "b"])
            assert [docs[0].id for docs in results] == ["id a", "id b"]
            assert (len(requests), client.stats.retried, client.stats.failed) == (3, 2, 0)

    run(main())


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_that_stays_gives_a_bounded_failure_which_is_not_cached(fault):
    async def main():
        broken = True

        async def handler(queries):
            return BROKEN[fault](queries) if broken else answer(queries)

        async with client_of(handler) as (client, requests):
            assert await client.search(["a", "b"]) == [Failure(FAILURE_TEXT, "retriever")] * 2
            assert len(requests) == 3
            broken = False
            assert (await client.search(["a"]))[0][0].id == "id a"

    run(main())


def test_a_request_that_the_server_refuses_is_not_repeated():
    async def main():
        async def refuse(queries):
            return web.Response(status=422)

        async with client_of(refuse) as (client, requests):
            assert await client.search(["a"]) == [Failure(FAILURE_TEXT, "retriever")]
            assert len(requests) == 1

    run(main())


def test_a_server_that_never_answers_costs_a_timeout_and_not_the_run():
    async def main():
        async def hang(queries):
            await asyncio.Event().wait()

        async with client_of(hang, timeout_s=0.05, retries=1) as (client, requests):
            assert await client.search(["a"]) == [Failure(FAILURE_TEXT, "retriever")]
            assert len(requests) == 2

    run(main())


def test_a_dead_server_gives_failures():
    async def main():
        client = RetrievalClient(RetrieverConfig(url="http://127.0.0.1:9", retries=1, backoff_s=0.0))
        assert await client.search(["a", "b"]) == [Failure(FAILURE_TEXT, "retriever")] * 2
        await client.close()

    run(main())


def test_closing_the_client_releases_those_who_wait():
    async def main():
        async def hang(queries):
            await asyncio.Event().wait()

        async with client_of(hang) as (client, requests):
            waiting = asyncio.create_task(client.search(["a"]))
            while not requests:
                await asyncio.sleep(0)
            await client.close()
            assert await waiting == [Failure(FAILURE_TEXT, "retriever")]

    run(main())


def test_results_with_scores_and_bare_documents_are_both_read():
    bare = {"id": 7, "contents": "text", "title": "ignored"}
    scored = {"document": bare, "score": 2}
    assert parse_results({"result": [[bare, scored]]}, 1, 5) == [
        [Document("7", "text", None), Document("7", "text", 2.0)]
    ]


def test_more_documents_than_asked_for_and_endless_documents_are_cut():
    documents = [{"id": str(i), "contents": "x" * (MAX_DOCUMENT_CHARS + 1)} for i in range(5)]
    (result,) = parse_results({"result": [documents]}, 1, 2)
    assert [(d.id, len(d.contents)) for d in result] == [("0", MAX_DOCUMENT_CHARS), ("1", MAX_DOCUMENT_CHARS)]


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["result", "document", "contents", "id"]), inner)
    ),
)


@given(_json, st.integers(0, 3))
def test_any_json_is_either_results_or_a_value_error(data, n_queries):
    try:
        results = parse_results(json.loads(json.dumps(data)), n_queries, 2)
    except ValueError:
        return
    assert len(results) == n_queries


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"url": "localhost:8000"}, "rag_r1.retriever.url"),
        ({"topk": 0}, "rag_r1.retriever.topk"),
        ({"topk": True}, "rag_r1.retriever.topk"),
        ({"retries": -1}, "rag_r1.retriever.retries"),
        ({"timeout_s": 0}, "rag_r1.retriever.timeout_s"),
        ({"top_k": 3}, "rag_r1.retriever.top_k"),
        ({"tool": "no such tool"}, "rag_r1.retriever.tool"),
        ({"tool": "no_such_module:make"}, "rag_r1.retriever.tool"),
    ],
)
def test_a_wrong_key_is_named(options, key):
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        make_searcher(options)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/retrieve", "http://h:1/retrieve/"])
def test_an_address_with_and_without_the_route_is_understood(url):
    assert RetrieverConfig(url=url).endpoint == "http://h:1/retrieve"


def test_a_tool_of_ones_own_is_named_by_its_import_path():
    searcher = make_searcher({"tool": f"{__name__}:make_own", "language": "fr"})
    assert asyncio.run(searcher.search(["q"])) == [[Document("fr", "q")]]


class _Own:
    def __init__(self, options):
        self.options = options

    async def search(self, queries):
        return [[Document(self.options["language"], query)] for query in queries]


make_own = _Own


def test_a_factory_that_raises_does_so_in_each_search_until_it_makes_a_tool():
    async def main():
        searcher = shared_searcher({"tool": f"{__name__}:make_late", "language": "fr"})
        for _ in range(2):
            with pytest.raises(ConnectionError, match="not yet"):
                await searcher.search(["q"])
        for _ in range(2):
            assert await searcher.search(["q"]) == [[Document("fr", "q")]]

    run(main())
    assert made == ["not yet", "not yet", "made"]


made: list[str] = []


def make_late(options):
    made.append("not yet" if len(made) < 2 else "made")
    if made[-1] == "not yet":
        raise ConnectionError("not yet")
    return _Own(options)


def test_trajectories_of_one_event_loop_share_a_searcher():
    async def main():
        one, same = shared_searcher({"topk": 3}), shared_searcher({"topk": 3})
        other = shared_searcher({"topk": 4})
        assert one is same and one is not other

    run(main())


HUGE = 10**400


def scored(score, contents="text"):
    """An answer's JSON for one query, with this score as it stands."""
    return f'[{{"document": {{"id": "1", "contents": "{contents}"}}, "score": {score}}}]'


@pytest.mark.parametrize("score", [str(HUGE), str(-HUGE), "1e999", "NaN", "-Infinity"])
def test_a_score_that_is_no_number_of_this_world_costs_its_own_query_only(score):
    async def main():
        async def one_is_odd(queries):
            lists = [scored(score if query == "odd" else 1.5, query) for query in queries]
            return web.Response(text=f'{{"result": [{", ".join(lists)}]}}')

        async with client_of(one_is_odd, gather_s=0.05, retries=1) as (client, requests):
            mine, sibling = await asyncio.gather(client.search(["a", "odd"]), client.search(["b"]))
            assert [mine[0], sibling[0]] == [[Document("1", query, 1.5)] for query in "ab"]
            assert mine[1] == Failure(FAILURE_TEXT, "retriever")
            assert "finite number" in mine[1].detail
            # What was answered is not asked for again.
            assert [request["queries"] for request in requests] == [["a", "odd", "b"], ["odd"]]
            assert client.stats.failed == 1 and (await client.search(["a"]))[0] == mine[0]

    run(main())


def test_a_fault_in_one_querys_documents_is_asked_about_again_and_the_order_is_kept():
    async def main():
        left = 1

        async def second_is_broken_once(queries):
            nonlocal left
            result = [[{"contents": query}] for query in queries]
            if left:
                left, result[1] = 0, [None]
            return web.json_response({"result": result})

        async with client_of(second_is_broken_once) as (client, requests):
            assert [found[0].contents for found in await client.search(["a", "b", "c"])] == ["a", "b", "c"]
            assert [request["queries"] for request in requests] == [["a", "b", "c"], ["b"]]
            assert (client.stats.retried, client.stats.failed) == (1, 0)

    run(main())


_scores = (
    st.integers()
    | st.floats()
    | st.integers(300, 420).map(lambda digits: 10**digits)
    | st.sampled_from([HUGE, -HUGE, 2**1024, 2**1024 - 2**970, True, None, "1", [1], {"a": 1}])
)


@given(st.lists(st.lists(_scores, max_size=3), max_size=4))
def test_whatever_the_scores_each_query_gets_documents_or_a_reason(scores):
    answer = {
        "result": [[{"document": {"contents": "x"}, "score": score} for score in row] for row in scores]
    }
    found = WIRES["retrieve"].parse_each(json.loads(json.dumps(answer)), len(scores), 3)
    for row, documents in zip(scores, found, strict=True):
        numbers = [score for score in row if isinstance(score, int | float) and not isinstance(score, bool)]
        try:
            usable = all(math.isfinite(float(number)) for number in numbers)
        except OverflowError:
            usable = False
        assert isinstance(documents, str) != usable
        if usable:
            assert [document.score for document in documents] == [
                float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
                for score in row
            ]
    if any(isinstance(one, str) for one in found):
        with pytest.raises(ValueError):
            parse_results(answer, len(scores), 3)


@pytest.mark.parametrize("own_id", ["x" * 10**6, {"a": 1}, [[]] * 9, None])
def test_an_id_is_short_or_none(own_id):
    ((document,),) = parse_results({"result": [[{"id": own_id, "contents": "x"}]]}, 1, 1)
    assert document.id == (own_id[:MAX_ID_CHARS] if isinstance(own_id, str) else "")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_token_goes_nowhere(status, monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "a-secret")

    async def main():
        seen = []

        async def elsewhere(request: web.Request) -> web.Response:
            seen.append(dict(request.headers))
            return answer((await request.json())["queries"])

        app = web.Application()
        app.router.add_route("*", "/retrieve", elsewhere)
        async with TestServer(app) as other:

            async def redirect(queries):
                return web.Response(status=status, headers={"Location": str(other.make_url("/retrieve"))})

            async with client_of(redirect) as (client, requests):
                [failure] = await client.search(["a"])
                assert failure == Failure(FAILURE_TEXT, "retriever") and str(status) in failure.detail
                assert len(requests) == 1 and seen == []

    run(main())


def test_an_answer_is_not_unpacked():
    async def main():
        async def packed(queries):
            body = gzip.compress(json.dumps({"result": [[]] * len(queries)}).encode())
            return web.Response(body=body, headers={"Content-Encoding": "gzip"})

        async with client_of(packed, retries=0) as (client, _):
            assert await client.search(["a"]) == [Failure(FAILURE_TEXT, "retriever")]

    run(main())


def test_a_time_to_wait_in_figures_of_another_script_is_none():
    async def main():
        async def busy(queries):
            return web.Response(status=503, headers={"Retry-After": "\u00b2"})

        async with client_of(busy, retries=1) as (client, requests):
            assert await client.search(["a"]) == [Failure(FAILURE_TEXT, "retriever")]
            assert len(requests) == 2

    run(main())
