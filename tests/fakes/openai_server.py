"""A server of models behind real HTTP, as OpenAI's API has it, which replies as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer

#: Longer than any test waits.
FOREVER_S = 1000.0
#: The tokens of every reply that is a text.
USAGE = {"prompt_tokens": 100, "completion_tokens": 1}

#: The text of a chat's reply; a whole answer, as JSON, bytes or a response of its own; a status; None for no
#: answer at all; ConnectionError for a connection that is closed instead.
Reply = str | int | bytes | dict[str, Any] | web.StreamResponse | type[ConnectionError] | None


@dataclass
class OpenAIServer(LoopbackServer):
    """`reply`: from the body of a request, for a chat or a completion. `bodies`, `headers`, `keys`: what was
    asked, and with which key; `most`: most requests at a time; `ports`: where its connections came from."""

    reply: Callable[[dict[str, Any]], Reply]
    delay_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)
    most: int = 0
    now: int = 0

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_post("/v1/completions", self.complete)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if is_first_request(body):
            return response_of("Hello")
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.keys.add(request.headers.get("Authorization"))
        self.ports.add(request.transport.get_extra_info("peername")[1])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.delay_s)
            reply = self.reply(body)
            if reply is None:
                await asyncio.sleep(FOREVER_S)
        finally:
            self.now -= 1
        if reply is ConnectionError:
            request.transport.close()
            return web.Response()
        return response_of(reply)


def is_first_request(body: Mapping[str, Any]) -> bool:
    """Is it the request for a single token that a run begins with?"""
    return body.get("messages") == [{"role": "user", "content": "Hi"}]


def response_of(reply: Reply) -> web.StreamResponse:
    """The HTTP response that a reply is."""
    if isinstance(reply, web.StreamResponse):
        return reply
    if isinstance(reply, int):
        return web.Response(status=reply, text="an error that quotes Paris")
    if isinstance(reply, bytes):
        return web.Response(body=reply, content_type="application/json")
    return web.json_response({**chat(reply), "usage": USAGE} if isinstance(reply, str) else reply)


def completion(body: Mapping[str, Any], text: str, ids: Sequence[int]) -> dict[str, Any]:
    """An answer of the completions API to a prompt of token ids, with vLLM's further keys."""
    stopped = next((stop for stop in body.get("stop") or () if text.rstrip().endswith(stop)), None)
    choice = {"text": text, "finish_reason": "stop", "stop_reason": stopped, "token_ids": ids}
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
    return {"choices": [choice], "usage": usage}


def chat(content: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """An answer of the chat API."""
    message = {"role": "assistant", "content": content, **message}
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}
