"""Proxies on loopback: a search that takes longer, and a server that is away."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import pytest
from aiohttp import web

from rag_r1.demo.loopback import DelayingProxy, LoopbackServer, Proxy
from tests.fakes.json_server import JsonStub


@pytest.mark.slow
def test_each_search_waits_so_long_and_is_answered_as_it_was(monkeypatch):
    waits, sleep = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda delay, *more: waits.append(delay) or sleep(delay, *more))

    def echo(request):
        return {"body": request.body, "path": request.path}

    with JsonStub(echo) as backend, DelayingProxy(backend.url, 0.0625) as proxy:
        answer = httpx.post(f"{proxy.url}/retrieve", json={"queries": ["a"]}, trust_env=False)
        assert answer.json() == {"body": {"queries": ["a"]}, "path": "/retrieve"}
        assert httpx.get(f"{proxy.url}/ready", trust_env=False).json()["path"] == "/ready"
        assert waits.count(0.0625) == 1


class Gate(LoopbackServer):
    """Answers none of eight requests before all have arrived."""

    def add_routes(self, app):
        self.barrier = asyncio.Barrier(8)
        app.router.add_post("/retrieve", self.answer)

    async def answer(self, request):
        await asyncio.wait_for(self.barrier.wait(), 60)
        return web.json_response({})


@pytest.mark.slow
def test_searches_do_not_wait_for_one_another():
    with Gate() as backend, DelayingProxy(backend.url, 0.01) as proxy, ThreadPoolExecutor(8) as pool:
        requests = [
            pool.submit(httpx.post, f"{proxy.url}/retrieve", trust_env=False, timeout=90) for _ in range(8)
        ]
        assert {request.result().status_code for request in requests} == {200}


def test_a_server_that_is_away_or_hangs_is_an_error_of_the_server():
    with Proxy("http://127.0.0.1:9") as proxy:
        assert httpx.post(f"{proxy.url}/retrieve", json={}, trust_env=False).status_code == 502
    with Gate() as backend, Proxy(backend.url) as proxy:
        proxy._session._timeout = aiohttp.ClientTimeout(0.1)
        assert httpx.post(f"{proxy.url}/retrieve", trust_env=False).status_code == 502
