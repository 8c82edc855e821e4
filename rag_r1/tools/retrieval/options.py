"""The options under `rag_r1.retriever`: the address, the limits and the query format of the retrieval server.

If the server requires a token, it is read from the environment variable `RETRIEVAL_TOKEN`. It is not a key of
the configuration, because configurations are logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import FIRST_ANSWER_S, Address
from rag_r1.options.types import Count, Flag, PositiveCount, PositiveSeconds, Seconds
from rag_r1.protocols.retriever_query import MODES
from rag_r1.tools.retrieval.wire import WIRES, WireFormat
from rag_r1.tools.secret_option import bearer_header

#: The environment variable with the bearer token of the server.
TOKEN_VARIABLE = "RETRIEVAL_TOKEN"


@options("rag_r1.retriever")
class RetrieverConfig:
    """The keys under `rag_r1.retriever`."""

    #: Address of the retrieval server; a trailing `/retrieve` (as in Search-R1) or `/queries` is removed.
    url: Address = "http://127.0.0.1:8000"
    #: Wire format of the server: `retrieve`, or `queries` (R1-Searcher's server); see wire.py.
    wire: Literal[tuple(WIRES)] = "retrieve"
    #: Number of documents for each query.
    topk: PositiveCount = 3
    #: Seconds for one attempt, including the connection. The server's own deadline, within which it answers
    #: or refuses, is 60 seconds.
    timeout_s: PositiveSeconds = 65.0
    #: Attempts after the first.
    retries: Count = 4
    #: Seconds before the first retry; doubles each time, with jitter.
    backoff_s: Seconds = 0.5
    #: Most queries in the cache; 0 turns it off.
    cache_size: Count = 10_000
    #: Whether a query is sent together with its context, joined by the separator of the server's encoder.
    #: This is for a retriever that was trained in this way (Agentic-R).
    agentic_input: Flag = False
    #: What is sent together with a query (rag_r1/protocols/retriever_query.py). By default it is what the
    #: server's encoder was trained with or, if the server does not say, the question (`agentic`). Another
    #: mode than that of the encoder is an error.
    mode: Literal[tuple(MODES)] | None = None
    #: Most connections to the server, per process. With veRL's eight agent workers and the default of
    #: `max_queries`, that is as many queries at once as the server takes (4,096).
    max_connections: PositiveCount = 32
    #: Seconds for which a query waits for others that share its request; 0 sends the queries of a turn at
    #: once.
    gather_s: Seconds = 0.002
    #: Most queries in a request, unless a single turn has more.
    max_queries: PositiveCount = 16

    def __post_init__(self) -> None:
        if self.mode not in (None, "plain") and not self.agentic_input:
            raise ValueError(f"mode {self.mode} needs agentic_input: true")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RetrieverConfig:
        """Read the keys under `rag_r1.retriever`. Raises OptionsError, which names every unknown or wrong
        key."""
        return options_from(cls, config)

    @property
    def wire_format(self) -> WireFormat:
        """The wire format with the name `wire`."""
        return WIRES[self.wire]

    @property
    def base(self) -> str:
        """The server's address without the route."""
        base = self.url.rstrip("/")
        for wire in WIRES.values():
            base = base.removesuffix(wire.path)
        return base

    @property
    def endpoint(self) -> str:
        """The full address to which queries are sent."""
        return self.base + self.wire_format.path


def token_header() -> dict[str, str]:
    """Return the header with the token, which must not be logged; empty without a token. Raises ValueError,
    which does not repeat the token, if no header can have it."""
    return bearer_header(TOKEN_VARIABLE)


def first_search(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys under `rag_r1.retriever` that differ for the first search of a command. That search
    only tests the server, so it is one attempt with a short time limit."""
    timeout_s = options.get("timeout_s", FIRST_ANSWER_S)
    is_number = isinstance(timeout_s, int | float)  # another value is reported together with other wrong keys
    return {"retries": 0, "timeout_s": min(timeout_s, FIRST_ANSWER_S) if is_number else timeout_s}
