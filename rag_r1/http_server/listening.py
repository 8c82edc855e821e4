"""Prepares a server before uvicorn runs it: its socket, its names and address, its token, and signals."""

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
    """Return a listening socket. Raises RunError if the port is taken or the machine does not have the
    address; the message names `flag`, which sets the port, or --host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # Negative numbers are errors of resolving the host's name.
        is_host_fault = error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0
        reason = reason_of(error).partition(" (while attempting")[0]
        remedy = "--host, one of this machine's addresses" if is_host_fault else flag
        raise RunError(f"cannot listen on {host}, port {port}: {reason}; choose another {remedy}") from error


def check_port(host: str, port: int, flag: str = "--port") -> None:
    """Raise the errors of `bind_socket` if the port cannot be used. The port stays free."""
    bind_socket(host, port, flag).close()


def take_token_of(variable: str) -> str | None:
    """Return what `token_of` returns, and remove the variable, so that programs started by this process do
    not receive the token. Raises RunError as `token_of` does."""
    token = token_of(variable)
    os.environ.pop(variable, None)
    return token


def token_of(variable: str) -> str | None:
    """Return the token in an environment variable; None if it is empty or not set.

    Raises RunError if a header cannot contain the token. The message does not repeat it; that of an HTTP
    library would.
    """
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise RunError(
            f"${variable} has characters that a token cannot have: "
            "use ASCII letters, digits and signs, as `openssl rand -hex 32` prints them"
        )
    return token or None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_without_token(host: str, token: str | None, variable: str) -> None:
    """Print a warning to stderr if other machines can reach the server and no token is required. `variable`
    is the environment variable for the token."""
    if token is None and not is_loopback(host):
        text = f"warning: {host} can be reached by others, and no token is required: set {variable}"
        print(text, file=sys.stderr, flush=True)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT while uvicorn serves, which handles them itself: it shuts down in an orderly
    way, and then raises the signal once more for the earlier handlers. Has no effect outside the main
    thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def server_names(host: str) -> set[str]:
    """Return the names under which a server on this address can be reached, as RequestGuard expects them: the
    address, and the name of this machine with and without its domain."""
    name = socket.gethostname()
    return {host, name, name.partition(".")[0]}


def server_url(host: str, port: int) -> str:
    """Return the URL of the server, in which an IPv6 address is put into brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
