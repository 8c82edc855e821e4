"""A retrieval server of which a test chooses each answer, and a client that asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from rag_r1.tools import RetrievalClient, RetrieverConfig

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
