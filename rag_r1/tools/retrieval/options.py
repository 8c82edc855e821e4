"""The options under `rag_r1.retriever`: the retrieval server's address, limits and query format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rag_r1.options.declare import Count, Flag, PositiveCount, PositiveSeconds, Seconds, options, options_from
from rag_r1.options.server_address import FIRST_ANSWER_S, Address
from rag_r1.protocols.retriever_query import MODES
from rag_r1.tools.retrieval.wire import WIRES, WireFormat


@options("rag_r1.retriever")
class RetrieverConfig:
    """The keys under `rag_r1.retriever`."""

    #: Address of the retrieval server; a trailing `/retrieve` (as in Search-R1) or `/queries` is removed.
    url: Address = "http://127.0.0.1:8000"
    #: Wire format of the server: `retrieve`, or `queries` (R1-Searcher's server); see wire.py.
    wire: Literal[tuple(WIRES)] = "retrieve"
    #: Documents per query.
    topk: PositiveCount = 3
    #: Seconds that one attempt may take, connecting included: more than the server's own deadline, 60, within
    #: which it answers or refuses.
    timeout_s: PositiveSeconds = 65.0
    #: Attempts after the first.
    retries: Count = 4
    #: Wait before the first retry in seconds; doubles each time, with jitter.
    backoff_s: Seconds = 0.5
    #: Queries in the cache; 0 turns it off.
    cache_size: Count = 10_000
    #: Whether a query is sent together with what it depends on, joined by the separator of the server's
    #: encoder: for a retriever that was trained so (Agentic-R).
    agentic_input: Flag = False
    #: What a query is sent with (rag_r1/protocols/retriever_query.py), by default the mode that the server's
    #: encoder was trained with or, if the server does not say, the question (`agentic`). Another mode than
    #: the encoder's is an error.
    mode: Literal[tuple(MODES)] | None = None
    #: Connections to the server, per process: with veRL's eight agent workers and `max_queries` as below, as
    #: many queries at once as the server takes (4,096).
    max_connections: PositiveCount = 32
    #: Seconds for which a query waits for others to share its request; 0 sends each turn's queries at once.
    gather_s: Seconds = 0.002
    #: Most queries in a request, unless one turn alone has more.
    max_queries: PositiveCount = 16

    def __post_init__(self) -> None:
        if self.mode not in (None, "plain") and not self.agentic_input:
            raise ValueError(f"mode {self.mode} needs agentic_input: true")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RetrieverConfig:
        """The options in the keys under `rag_r1.retriever`. Raises OptionsError naming every unknown or wrong
        key."""
        return options_from(cls, config)

    @property
    def wire_format(self) -> WireFormat:
        """The wire format that `wire` names."""
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


def first_search(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keys under `rag_r1.retriever` that differ for the first search of a command, which tries the
    server: one attempt, and no long wait for it."""
    timeout_s = options.get("timeout_s", FIRST_ANSWER_S)
    is_number = isinstance(timeout_s, int | float)  # anything else is refused together with other wrong keys
    return {"retries": 0, "timeout_s": min(timeout_s, FIRST_ANSWER_S) if is_number else timeout_s}
