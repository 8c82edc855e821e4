"""Retrieval servers behind real HTTP: one of a few passages, and one of which a test writes each answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from rag_r1.tools import RetrievalClient, RetrieverConfig
from tests.fakes.json_server import Asked, JsonStub

Handler = Callable[[list[str]], Awaitable[web.Response]]


def results(lists: Iterable[Iterable[tuple[str, str]]], **more: Any) -> dict[str, Any]:
    """An answer on the wire: (id, contents) of the documents of each query; `more`: keys beside each."""
    return {
        "result": [
            [{"document": {"id": own_id, "contents": contents}, **more} for own_id, contents in documents]
            for documents in lists
        ]
    }


class Retriever(JsonStub):
    """Answers every query with `passages` (id -> contents), in order, and everything else with `{}`; refuses
    the queries that contain `refuse`, and counts them in `refused`. `queries`: those that it answered."""

    def __init__(self, passages: Mapping[str, str]):
        super().__init__(self._answer)
        self.passages = dict(passages)
        self.refuse: str | None = None
        self.refused = 0
        self.queries: list[str] = []

    def _answer(self, request: Asked) -> Any:
        if request.method != "POST":
            return {}
        queries = request.body["queries"]
        if self.refuse and any(self.refuse in query for query in queries):
            self.refused += 1
            return 422, json.dumps({"error": "refused"})
        self.queries += queries
        return results([[*self.passages.items()][: request.body["topk"]]] * len(queries), score=1.0)


def answer(queries: list[str]) -> web.Response:
    """A right answer: one document for each query, which names the query."""
    return web.json_response(results(([(f"id {q}", f"about {q}")] for q in queries), score=0.5))


@asynccontextmanager
async def client_of(handler: Handler, **options):
    """A client of a server in the loop of the test, and the list of the requests that this server got."""
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
