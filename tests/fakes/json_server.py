"""A server on loopback that answers every request with what it is told to, and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer


@dataclass
class Asked:
    """A request: its method and path, its JSON body or form, and its headers."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


@dataclass
class JsonStub(LoopbackServer):
    """`answer(asked)` gives a JSON value, or (status, text); `answer_headers()` the headers of an answer."""

    answer: Callable[[Asked], Any]
    asked: list[Asked] = field(default_factory=list)
    answer_headers: Callable[[], dict[str, str]] = dict

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self._handle)

    async def _handle(self, request: web.Request) -> web.Response:
        is_json = request.content_type == "application/json"
        body = await request.json() if is_json else dict(await request.post())
        received = Asked(request.method, request.path, body, dict(request.headers))
        self.asked.append(received)
        answer = self.answer(received)
        status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
        location = {"Location": "/elsewhere"} if status == 302 else {}
        headers = {**location, **self.answer_headers()}
        return web.Response(status=status, text=text, content_type="application/json", headers=headers)
