"""Runs the chat's HTTP server, uvicorn, from a bound socket until a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from rag_r1.serving.app import create_app
from rag_r1.serving.arguments import AgentArguments
from rag_r1.serving.chats import Chats
from rag_r1.serving.connections import configuration
from rag_r1.serving.metrics import Metrics
from rag_r1.serving.places import Place
from rag_r1.serving.player import opened
from rag_r1.serving.seats import Seats

#: Seconds in which the clients of chats that a stop has ended are told so.
_TOLD_S = 3


@dataclass
class Running:
    """A server that answers: its address, and the way to stop it from another thread."""

    url: str
    server: uvicorn.Server

    def stop(self) -> None:
        """Finish what has begun, then end."""
        self.server.should_exit = True


async def serve(
    given: AgentArguments,
    place: Place,
    listener: socket.socket,
    ready: Callable[[Running], None],
    *,
    allowed: Sequence[str] = (),
    token: str | None = None,
    drain_s: int = 120,
) -> None:
    """Serve on a bound socket until a signal, or until Running.stop; `ready` is called when it answers.
    Raises RunError if the search or the model does not work."""
    host, port = listener.getsockname()[:2]
    async with opened(place.evaluation) as player:
        seats = Seats(given.concurrency, given.queue)
        chats = Chats(player, seats, Metrics(seats), given.name, given.earlier)
        app = create_app(chats, place.about, own=_own_names(host), allowed=allowed, token=token)
        server = _Server(configuration(app, stop_s=drain_s + _TOLD_S), ready, chats, drain_s)
        server.running = Running(f"http://{_in_url(host)}:{port}", server)
        if threading.current_thread() is threading.main_thread():
            # uvicorn stops orderly at a signal, and then raises it once more: that one is ignored.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells when it answers, and ends the chats that a stop has waited for long enough."""

    running: Running

    def __init__(self, config: uvicorn.Config, ready: Callable[[Running], None], chats: Chats, drain_s: int):
        super().__init__(config)
        self._ready, self._chats, self._drain_s = ready, chats, drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready(self.running)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end = asyncio.get_running_loop().call_later(self._drain_s, self._chats.stop)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def _own_names(host: str) -> set[str]:
    name = socket.gethostname()
    return {host, name, name.partition(".")[0]}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
