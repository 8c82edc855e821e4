"""The token that the clients of a server must send, from an environment variable."""

from __future__ import annotations

import ipaddress
import os
import sys

from rag_r1.io.secrets import read_secret
from rag_r1.runs.errors import RunError


def read_token(variable: str) -> str | None:
    """Return the token in an environment variable; None if it is empty or not set. Raises RunError, whose
    message does not show the token, if a header cannot contain it."""
    try:
        return read_secret(variable)
    except ValueError:
        raise RunError(
            f"${variable} has characters that a token cannot have: "
            "use ASCII letters, digits and signs, as `openssl rand -hex 32` prints them"
        ) from None


def take_token(variable: str) -> str | None:
    """Return the token as `read_token` does, and remove the variable, so that programs started by this
    process do not receive the token. Raises RunError as `read_token` does; the variable then stays."""
    token = read_token(variable)
    os.environ.pop(variable, None)
    return token


def warn_without_token(host: str, token: str | None, variable: str) -> None:
    """Print a warning to stderr if other machines can reach the server and no token is required. `variable`
    is the environment variable for the token."""
    if token is None and not _is_loopback(host):
        text = f"warning: {host} can be reached by others, and no token is required: set {variable}"
        print(text, file=sys.stderr, flush=True)


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
