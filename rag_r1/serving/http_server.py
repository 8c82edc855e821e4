"""Runs the chat's HTTP server, uvicorn, on a bound socket until a signal.

`rag-r1 serve` runs it in its main thread, and `rag-r1 chat` in a thread beside the terminal.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import uvicorn

from rag_r1.http_server.idle_timeout import uvicorn_config
from rag_r1.http_server.listening import server_names, server_url
from rag_r1.http_server.stop_signals import signals_ignored
from rag_r1.serving.admission import AdmissionQueue
from rag_r1.serving.agent import open_agent
from rag_r1.serving.app import create_app
from rag_r1.serving.arguments import ChatAgentArguments
from rag_r1.serving.launch import LaunchedAgent
from rag_r1.serving.metrics import ChatMetrics
from rag_r1.serving.sessions import ChatSessions

#: Seconds in which the clients of cancelled chats get their last messages.
_LAST_MESSAGE_S = 3


async def serve(
    args: ChatAgentArguments,
    launched: LaunchedAgent,
    listener: socket.socket,
    on_ready: Callable[[RunningServer], None],
    *,
    allowed: Sequence[str] = (),
    token: str | None = None,
    drain_s: int = 120,
) -> None:
    """Serve on a bound socket until a signal or a call of RunningServer.stop.

    `on_ready` is called when the server answers requests. `allowed` are further host names that requests may
    use, `token` is the bearer token that they must have, and `drain_s` the seconds for chats to finish after
    a stop. Raises RunError if the search or the model does not work."""
    host, port = listener.getsockname()[:2]
    async with open_agent(launched.evaluation) as agent:
        admission = AdmissionQueue(args.in_flight, args.queue)
        metrics = ChatMetrics(admission)
        chats = ChatSessions(agent, admission, metrics, args.name, args.max_history, launched.about.golds)
        app = create_app(chats, launched.about, names=server_names(host), allowed=allowed, token=token)
        config = uvicorn_config(app, stop_s=drain_s + _LAST_MESSAGE_S)
        server = RunningServer(config, server_url(host, port), on_ready, chats, drain_s)
        with signals_ignored():
            await server.serve(sockets=[listener])


class RunningServer(uvicorn.Server):
    """A server that calls `on_ready` when it answers requests at `url`. After a stop, chats that take longer
    than `drain_s` seconds are cancelled."""

    def __init__(
        self,
        config: uvicorn.Config,
        url: str,
        on_ready: Callable[[RunningServer], None],
        chats: ChatSessions,
        drain_s: int,
    ):
        super().__init__(config)
        self.url = url
        self._on_ready = on_ready
        self._chats, self._drain_s = chats, drain_s

    def stop(self) -> None:
        """Stop after the current chats have finished. May be called from another thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._on_ready(self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._chats.stop)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
