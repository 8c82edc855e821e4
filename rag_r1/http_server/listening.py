"""The socket on which a server listens, and the names and the URL under which it can be reached."""

from __future__ import annotations

import errno
import socket

from rag_r1.io.errors import reason_of
from rag_r1.runs.errors import RunError


def bind_socket(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a listening socket. Raises RunError if the port is taken or the machine does not have the
    address; the message names `flag`, which sets the port, or --host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, TypeError) as error:
        # Negative numbers are errors of resolving the host's name; for a TypeError it cannot be encoded.
        number = getattr(error, "errno", -1) or 0
        is_host_fault = number == errno.EADDRNOTAVAIL or number < 0
        # socket.create_server appends "(while attempting to bind on address ...)" to the system's text.
        reason = reason_of(error).partition(" (while attempting")[0]
        remedy = "--host, one of this machine's addresses" if is_host_fault else flag
        raise RunError(f"cannot listen on {host}, port {port}: {reason}; choose another {remedy}") from error


def check_port(host: str, port: int, flag: str = "--port") -> None:
    """Raise the errors of `bind_socket` if the port cannot be used. The port stays free."""
    bind_socket(host, port, flag).close()


def server_names(host: str) -> set[str]:
    """Return the names under which a server on this address can be reached, as RequestGuard expects them: the
    address, and the name of this machine with and without its domain."""
    name = socket.gethostname()
    return {host, name, name.partition(".")[0]}


def server_url(host: str, port: int) -> str:
    """Return the URL of the server, in which an IPv6 address is put into brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
