"""Servers that take connections, and never answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer


@contextmanager
def silent_server() -> Iterator[str]:
    """Its address. Connections are taken by the system, and nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class HangingServer(LoopbackServer):
    """It reads each request, and then hangs. Its `asked` are the paths of all requests."""

    def __enter__(self) -> HangingServer:
        self.asked: list[str] = []
        return super().__enter__()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self.hang)

    async def hang(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        await asyncio.Event().wait()
        raise AssertionError("not reached")
