"""`rag-r1 eval` for a policy of the demo: the command's words, with the limits of the demo's own validation.

A retrieval server that takes `delay_s` for a search, as one over a large index or on the web does, is the
real one behind `delayed`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from rag_r1.demo.server import ROOT

_RECIPES = ROOT / "recipes" / "demo"
_PROMPT = Path(__file__).parent / "prompt.txt"
#: Asked for once and never again, so a cache would only hide the time of a search.
NO_CACHE = "rag_r1.retriever.cache_size=0"


def evaluation(model: Path, data: Path, protocol: str, url: str, out: Path, *more: str) -> list[str]:
    """The words after `rag-r1 eval` that play the questions `data` as the demo's validation does."""
    settings = _settings(protocol)
    own = _PROMPT.with_name(f"prompt_{protocol}.txt")
    given = {
        "--model": model,
        "--data": data,
        "--protocol": protocol,
        "--prompt": own if own.exists() else _PROMPT,
        "--retriever-url": url,
        "--max-prompt-tokens": settings["data"]["max_prompt_length"],
        "--max-response-tokens": settings["data"]["max_response_length"],
        "--out": out,
    }
    keys = [
        f"rag_r1.{section}.{name}={value}"
        for section in ("agent", "retriever")
        for name, value in settings["rag_r1"][section].items()
    ]
    return [*(str(word) for pair in given.items() for word in pair), *more, *keys]


def _settings(protocol: str) -> dict[str, dict[str, Any]]:
    """The demo's settings for a protocol, as the recipes have them."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("_common", *(["_r1_searcher"] if protocol == "r1_searcher" else [])):
        recipe = yaml.safe_load((_RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
        for section in ("rag_r1", "data"):
            found[section] = {**found.get(section, {}), **recipe.get(section, {})}
    return found


@contextmanager
def delayed(backend: str, delay_s: float) -> Iterator[str]:
    """The retrieval server `backend` behind another address, each of whose answers takes `delay_s` longer;
    yields that address. Requests do not wait for one another."""
    proxy = _Proxy(backend, delay_s)
    proxy.start()
    try:
        yield proxy.url
    finally:
        proxy.stop()


class _Proxy:
    """An HTTP server in a thread of its own."""

    def __init__(self, backend: str, delay_s: float):
        self.backend, self.delay_s, self.url = backend.rstrip("/"), delay_s, ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.Response:
        data, target = await request.read(), self.backend + request.path_qs
        if request.method == "POST":
            await asyncio.sleep(self.delay_s)
        headers = {"Content-Type": request.content_type}
        try:
            async with self._session.request(request.method, target, data=data, headers=headers) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type="application/json"
                )
        except aiohttp.ClientError:
            return web.Response(status=502)
