"""Runs the server's process until a signal stops it or an index fails to load."""

from __future__ import annotations

import signal
import socket
from typing import Any

import uvicorn


class ServerProcess:
    """Runs an app in this process."""

    def __init__(self) -> None:
        #: The error of an index that did not load, if that stopped the server.
        self.failure: BaseException | None = None
        self._server: uvicorn.Server | None = None

    def prepare(self, config: uvicorn.Config) -> None:
        """Create the server. From now on a signal stops it.

        uvicorn stops gracefully by itself: it closes the port, answers the accepted requests, and then raises
        the signal once more. This handler receives that second signal, so that the process ends with status
        0.
        """
        self._server = uvicorn.Server(config)
        _handle_stop_signals(self.stop)

    def run(self, listener: socket.socket) -> None:
        """Serve on the open port until the server is stopped. Call `prepare` before."""
        assert self._server is not None
        self._server.run(sockets=[listener])
        _handle_stop_signals(signal.SIG_IGN)  # a second signal does not change the status either

    def stop(self, *_: object) -> None:
        """Stop gracefully. Call `prepare` before."""
        assert self._server is not None
        self._server.should_exit = True

    def fail(self, error: BaseException) -> None:
        """Stop because of an error. The first error of several is kept."""
        self.failure = self.failure or error
        self.stop()


def _handle_stop_signals(handler: Any) -> None:
    """Install a handler for the signals that stop a server."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
