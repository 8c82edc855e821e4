"""The process of the server: it runs until a signal stops it, or until an index does not load."""

from __future__ import annotations

import signal
import socket
from typing import Any

import uvicorn


class ServerProcess:
    """Runs an app in this process. `failure`: the error of an index that did not load, if one stopped it."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._server: uvicorn.Server | None = None

    def prepare(self, config: uvicorn.Config) -> None:
        """Make the server; a signal stops it from now on.

        uvicorn stops gracefully by itself: it closes the port, answers what it has accepted, and then raises
        the signal once more. This handler receives that one, so that an ordered stop ends with status 0.
        """
        self._server = uvicorn.Server(config)
        _handle_stop_signals(self.stop)

    def run(self, listener: socket.socket) -> None:
        """Serve on the open port until the server is stopped; call `prepare` first."""
        assert self._server is not None
        self._server.run(sockets=[listener])
        _handle_stop_signals(signal.SIG_IGN)  # a second signal does not change the status either

    def stop(self, *_: object) -> None:
        """End gracefully; call `prepare` first."""
        assert self._server is not None
        self._server.should_exit = True

    def fail(self, error: BaseException) -> None:
        """End because of this error, or an earlier one."""
        self.failure = self.failure or error
        self.stop()


def _handle_stop_signals(handler: Any) -> None:
    """Install a handler for the signals by which a server is stopped."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
