"""A judge behind a real HTTP server: an OpenAI-compatible chat endpoint that replies as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer

#: Longer than any test waits.
FOREVER_S = 1000.0


@dataclass
class JudgeServer(LoopbackServer):
    """`reply`: from a request's body to the text of the reply, a status, the whole answer, or None for no
    answer at all. `bodies`, `keys`: what was asked and with which key; `most`: most requests at a
    time; `ports`: where its connections came from."""

    reply: Callable[[dict[str, Any]], str | int | bytes | web.Response | None]
    delay_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)
    most: int = 0
    now: int = 0

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    @property
    def cases(self) -> list[dict[str, Any]]:
        """What was to be judged."""
        return [json.loads(body["messages"][1]["content"]) for body in self.bodies]

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.complete)

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        self.ports.add(request.transport.get_extra_info("peername")[1])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.delay_s)
            said = self.reply(body)
            if said is None:
                await asyncio.sleep(FOREVER_S)
        finally:
            self.now -= 1
        return said_so(said)


def said_so(said: str | int | bytes | web.Response) -> web.Response:
    """The HTTP answer."""
    if isinstance(said, web.Response):
        return said
    if isinstance(said, int):
        return web.Response(status=said, text="an error that quotes Paris")
    if isinstance(said, bytes):
        return web.Response(body=said, content_type="application/json")
    return web.json_response(chat(said))


def chat(content: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """An answer of the chat API."""
    told = {"role": "assistant", "content": content, **message}
    return {"choices": [{"message": told, "finish_reason": finish_reason}]}
