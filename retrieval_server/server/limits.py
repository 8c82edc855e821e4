"""The limits of one request and of all connections."""

from __future__ import annotations

import resource
from typing import Annotated

from pydantic import Field

from retrieval_server.options import AtLeastOne, Flag, Group, Options

#: Files that the process may open besides its connections: indexes, logs, the recording.
_RESERVED_FILES = 128


class RequestLimits(Options):
    """The limits of a single request; a request that exceeds one is answered with 413."""

    group = Group("limits of one request")

    max_queries: Annotated[AtLeastOne, Flag("queries in one request")] = 2048
    max_query_chars: Annotated[AtLeastOne, Flag("characters in a query")] = 8192
    max_topk: Annotated[AtLeastOne, Flag("largest topk of a request")] = 100
    max_body_bytes: int = 16 * 2**20


def connection_limit(connections: int) -> int:
    """Return `connections`, or fewer if the process may not open as many files (`ulimit -n`); at least 16."""
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if max_files == resource.RLIM_INFINITY:
        return connections
    return max(16, min(connections, max_files - _RESERVED_FILES))


class ConnectionLimits(Options):
    """How many connections are allowed, and how long one may take to send a request."""

    group = Group("who may connect")

    max_connections: Annotated[
        AtLeastOne,
        Flag(
            "connections at a time, idle ones included; more get 503; 4096, or what ulimit -n leaves",
            metavar="N",
        ),
    ] = Field(default_factory=lambda: connection_limit(4096))
    read_timeout_s: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        Flag(
            "time in which a request's headers, and again its body, must have arrived",
            names=("--read-timeout",),
            metavar="SECONDS",
        ),
    ] = 30.0
