"""JSON of somebody else's server is counted before objects are made of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.inference.rate_limit import CancelToken
from rag_r1.io.bounded_json import JsonLimitError, read_json
from rag_r1.tools.http import HttpFailure, JsonClient
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

LISTS = b"[" + b"[]," * 2_000_000 + b"[]]"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_honest_values_are_read_as_json_reads_them(value):
    for escaped in (True, False):
        data = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
        assert read_json(data, 1000) == value
    assert read_json(b"\xef\xbb\xbf[1]", 10) == [1]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[" + b"[]," * 2000 + b"[]]", "more than 1,000 values"),
        (b"[" + b'"\\\\",' * 2000 + b"0]", "more than 1,000 values"),
        (b'{"a":{}' + b',"b":{}' * 2000 + b"}", "more than 1,000 values"),
        (b'"ab' * 100_000, "more than 1,000 values"),
        (b"[" + b"]" * 2000, "more than 1,000 values"),
        (b'{"a":' + b"}" * 2000, "more than 1,000 values"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
    ],
)
def test_too_many_values_and_levels_are_refused(data, told):
    with pytest.raises(JsonLimitError, match=told):
        read_json(data, 1000)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le"])
def test_brackets_do_not_hide_in_another_encoding(encoding):
    with pytest.raises(ValueError):
        read_json(("[" + '"\u2200",' + "[]," * 2000 + "[]]").encode(encoding), 1000)


async def answered(path: str) -> web.Response:
    return web.Response(body=LISTS, content_type="application/json")


def test_clients_make_no_objects_of_millions_of_empty_lists():
    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answered)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            tool = JsonClient()
            with pytest.raises(HttpFailure, match="more than 500,000 values"):
                await tool.ask("GET", url)
            await tool.close()
            endpoint = Endpoint(EndpointOptions(url, retries=0), CancelToken())
            with pytest.raises(EngineFailure, match="more than 1,500,000 values"):
                await endpoint.post("/completions", {"prompt": "q", "max_tokens": 8192}, lambda data: data)
            await endpoint.close()
            search = RetrievalClient(RetrieverConfig(url=url, retries=0))
            [found] = await search.search(["q"])
            assert "values" in found.detail
            await search.close()

    asyncio.run(main())
