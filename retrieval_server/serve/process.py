"""Runs the server's process until a signal stops it or an index fails to load."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn


class ServerProcess:
    """Runs an app in this process. From its creation on, SIGTERM and SIGINT stop the server.

    `make_config` returns uvicorn's settings with the app. It gets the method `fail`, which the app must call
    if an index does not load.

    The constructor installs the signal handlers, which only the main thread can do. uvicorn handles the first
    signal itself: it closes the port, answers the accepted requests, and then raises the signal once more.
    The handler of this class receives that second signal, so that the process ends with status 0.
    """

    def __init__(self, make_config: Callable[[Callable[[BaseException], None]], uvicorn.Config]):
        #: The error of an index that did not load, if that stopped the server.
        self.failure: BaseException | None = None
        self._server = uvicorn.Server(make_config(self.fail))
        _handle_stop_signals(self.stop)

    def run(self, listener: socket.socket) -> None:
        """Serve on the open port until the server is stopped. Later signals are ignored."""
        self._server.run(sockets=[listener])
        _handle_stop_signals(signal.SIG_IGN)  # a second signal does not change the status either

    def stop(self, *_: object) -> None:
        """Stop gracefully. The arguments are those of a signal handler."""
        self._server.should_exit = True

    def fail(self, error: BaseException) -> None:
        """Stop because of an error. The first error of several is kept. Only a running app may call this."""
        self.failure = self.failure or error
        self.stop()


def _handle_stop_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Install a handler for the signals that stop a server."""
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, handler)
