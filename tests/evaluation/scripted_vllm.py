"""A completions endpoint in vLLM's form, behind a real HTTP server: token ids in, token ids out.

It answers a question without searching, rightly or wrongly as `fate(question, temperature, seed)` says, so
what a run must come to can be computed from the seeds of its asks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Policy:
    """A context manager. `golds`: right answers by question; `search`: the retrieval server finds nothing."""

    tokenizer: Any
    golds: Mapping[str, str]
    fate: Callable[[str, float, int], bool]
    bodies: list[dict] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Policy:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *unused: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/retrieve", self._retrieve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _retrieve(self, request: web.Request) -> web.Response:
        return web.json_response({"result": [[] for _ in (await request.json())["queries"]]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["max_tokens"] > 1:  # not the probe
            self.bodies.append(body)
        prompt = self.tokenizer.decode(body["prompt"])
        question = max((q for q in self.golds if q in prompt), key=len, default="")
        right = question and self.fate(question, body["temperature"], body.get("seed", 0))
        text = f"<answer> {self.golds[question] if right else 'wrong'} </answer>"
        ids = self.tokenizer(text, add_special_tokens=False).input_ids[: body["max_tokens"]]
        choice = {"text": text, "finish_reason": "stop", "stop_reason": "</answer>", "token_ids": ids}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return web.json_response({"choices": [choice], "usage": usage})
