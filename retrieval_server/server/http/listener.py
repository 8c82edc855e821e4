"""Opens the socket on which the server listens. This happens before anything is loaded."""

from __future__ import annotations

import errno
import socket

from retrieval_server.errors import UserError, reason_of


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address; port 0 selects any free port.

    The socket listens at once, because two processes can bind the same port as long as neither listens on it.
    Raises UserError if this machine cannot listen there.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(2048)  # connections that may wait to be accepted, as in uvicorn
            return listener.dup()  # the block closes the other one, also after an error
    except (OSError, TypeError) as error:  # TypeError: a name that cannot be encoded
        raise _refusal(host, port, error) from None


def _refusal(host: str, port: int, error: OSError | TypeError) -> UserError:
    """Return the error, with the remedy, for an address on which this process cannot listen."""
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return UserError(
            f"port {port} of {host} is in use by another process. Stop that one, or choose another port with "
            "--port (0: any free one).",
            "--port",
        )
    if number == errno.EACCES:
        text = f"port {port}: this user may not listen on it. Choose one from 1024 on with --port."
        return UserError(text, "--port")
    return UserError(
        f"--host {host}: this machine cannot listen there, at port {port} ({reason_of(error)}). Give one of "
        "its own addresses, 127.0.0.1 (this machine only) or 0.0.0.0 (the whole network).",
        "--host",
    )
