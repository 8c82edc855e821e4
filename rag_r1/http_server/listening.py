"""The socket on which a server listens, its names, and the token that clients must send."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rag_r1.io.atomic_files import reason_of
from rag_r1.runs.errors import RunError


def bind_socket(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Returns a listening socket, before anything is loaded. Raises RunError, which names the flag, if the
    port is taken, or the machine has no such address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # Numbers below 0 are faults of the host's name.
        is_host_fault = error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0
        reason = reason_of(error).partition(" (while attempting")[0]
        remedy = "--host, one of this machine's addresses" if is_host_fault else flag
        raise RunError(f"cannot listen on {host}, port {port}: {reason}; choose another {remedy}") from error


def check_port(host: str, port: int, flag: str = "--port") -> None:
    """Raises RunError as `bind_socket`, without keeping the port."""
    bind_socket(host, port, flag).close()


def take_token_of(variable: str) -> str | None:
    """Returns the token in an environment variable; None if it is empty or not set. The variable is removed,
    so that servers which this process starts do not get it. Raises RunError, without the token, if a header
    cannot hold it: HTTP libraries show what they refuse."""
    token = os.environ.pop(variable, "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise RunError(
            f"${variable} has characters that a token cannot have: "
            "use ASCII letters, digits and signs, as `openssl rand -hex 32` prints them"
        )
    return token or None


def is_loopback(host: str) -> bool:
    """Returns whether the address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_without_token(host: str, token: str | None, variable: str) -> None:
    """Prints a warning on stderr for a server that other machines reach, if no token is required; it names
    the environment variable of the token."""
    if token is None and not is_loopback(host):
        text = f"warning: {host} can be reached by others, and no token is required: set {variable}"
        print(text, file=sys.stderr, flush=True)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignores SIGTERM and SIGINT around uvicorn's serving, which handles them itself: it stops orderly, and
    then raises the signal once more for the earlier handlers. Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def server_names(host: str) -> set[str]:
    """Returns the names under which a server on this address can be reached, for RequestGuard."""
    name = socket.gethostname()
    return {host, name, name.partition(".")[0]}


def server_url(host: str, port: int) -> str:
    """Returns the address of the server for a browser."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
