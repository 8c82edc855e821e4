"""What a client has kept is of the index that is served now, as far as its answers can tell."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document
from rag_r1.tools import close_tools, shared_tools
from rag_r1.tools.retrieval.cache import QueryCache
from rag_r1.tools.retrieval.query_format import VERSION_HEADER
from tests.fakes.json_server import JsonStub
from tests.fakes.retriever import client_of, results


def answer(queries: list[str], version: int | None) -> web.Response:
    """One document for each query, named after the version of the index."""
    results = [[{"document": {"id": f"{query} of {version}", "contents": "x"}}] for query in queries]
    headers = {} if version is None else {VERSION_HEADER: str(version)}
    return web.json_response({"result": results}, headers=headers)


async def test_a_reloaded_index_is_asked_again_for_what_was_kept():
    version = 1

    async def served(queries):
        return answer(queries, version)

    async with client_of(served) as (client, requests):

        async def ids(*queries: str) -> list[str]:
            return [documents[0].id for documents in await client.search(queries)]

        assert await ids("a", "b") == await ids("a", "b") == ["a of 1", "b of 1"]
        assert len(requests) == 1
        version = 2
        assert await ids("c") == ["c of 2"], "the client learns of it"
        assert await ids("a", "b") == ["a of 2", "b of 2"]
        assert await ids("a", "b") == ["a of 2", "b of 2"] and len(requests) == 3, "and keeps these"
        version = 1  # the server was started again
        assert await ids("d") == ["d of 1"]
        assert await ids("a") == ["a of 1"]


async def test_a_late_answer_of_the_old_index_is_given_and_not_kept():
    gate = asyncio.Event()

    async def served(queries):
        if queries == ["late"] and not gate.is_set():
            await gate.wait()
            return answer(queries, 1)
        return answer(queries, 2 if requests[1:] else 1)

    async with client_of(served, gather_s=0.0) as (client, requests):
        [[first]] = await client.search(["a"])
        late = asyncio.create_task(client.search(["late"]))
        while len(requests) < 2:
            await asyncio.sleep(0)
        [[second]] = await client.search(["b"])
        gate.set()
        [[old]] = await late
        assert [first.id, second.id, old.id] == ["a of 1", "b of 2", "late of 1"]
        [[again], [kept]] = await client.search(["late", "b"])
        assert (again.id, kept.id) == ("late of 2", "b of 2") and len(requests) == 4


async def test_a_server_that_names_no_version_keeps_its_answers():
    async def served(queries):
        return answer(queries, None)

    async with client_of(served) as (client, requests):
        for _ in range(3):
            await client.search(["a"])
        assert json.dumps(requests).count('"a"') == 1


@given(st.lists(st.tuples(st.sampled_from("send answer reload".split()), st.integers(0, 5)), max_size=40))
def test_what_is_kept_is_of_the_newest_version_that_was_seen_in_whatever_order_answers_arrive(events):
    """A request is answered by a version that was served at some moment while it was under way."""
    kept, served, under_way, seen = QueryCache(100), 1, [], 0
    for kind, number in events:
        if kind == "reload":
            served += 1
        elif kind == "send":
            under_way.append((kept.reloads, served))
        elif under_way:
            sent_at, first = under_way.pop(number % len(under_way))
            by = first + number % (served - first + 1)
            seen = max(seen, by) if sent_at == kept.reloads else seen
            kept.note_version(str(by), sent_at)
            kept.keep("query", [Document(str(by), "")], sent_at)
        assert kept.get("query") in (None, [Document(str(seen), "")])
    for _ in range(2):  # the first of them may be the one by which the client learns of the last reload
        sent_at = kept.reloads
        kept.note_version(str(served), sent_at)
        kept.keep("query", [Document(str(served), "")], sent_at)
    assert kept.get("query") == [Document(str(served), "")]


async def test_the_tools_of_an_episode_name_the_index_that_answered_last():
    version = ["1"]
    found = results([[("p", "passage")]])
    with JsonStub(lambda _: found, answer_headers=lambda: {VERSION_HEADER: version[0]}) as server:
        entry = {"tool": "retrieval", "url": server.url, "description": "Searches."}
        tools = shared_tools({"url": server.url}, {"other": entry})
        for tool in tools.values():
            for version[0] in ("1", "2"):
                await tool.call([{"query": f"query {version[0]}"}])
                assert tool.index == version[0]
        await close_tools(tools)
