"""The interfaces through which an episode uses engines, tools and codecs.

The implementations may be anybody's code and may break these contracts: validation.py checks what they
return, and episode.py and tool_executor.py turn every error into a typed failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from rag_r1.protocols import Document, Failure, Refusal
from rag_r1.protocols.retriever_query import Context


@dataclass(frozen=True)
class Generation:
    """The tokens that an engine returned for one turn."""

    token_ids: list[int]
    #: The log-prob of each token, in nats; None if the engine gives none.
    logprobs: list[float] | None = None
    #: Whether the engine gave up, for the reason in `detail`.
    aborted: bool = False
    detail: str = ""


class UnknownTokenError(ValueError):
    """Raised for a token id that is not in the vocabulary."""


class Engine(Interface):
    """A language model. `generate` continues a context, given as token ids, by at most `max_tokens` tokens;
    it ends after the first of the strings in `stop`, whose tokens are included in the result."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation: ...


class Tool(Interface):
    """A tool that the policy can call.

    `parameters` is the JSON schema of the arguments, which are an object. `fault` returns what is wrong with
    the arguments of a call, in words for the policy, or None; it must not block, so anything that is slow to
    load is loaded by the first call. `call` answers all calls of a turn at once, with a result for each.

    These attributes are optional:

        checked(arguments)     a coroutine that is awaited in place of `fault`, for checks that may take long
        limits                 a ToolLimits (rag_r1/options/tool_limits.py)
        together = False       each call of a turn is made in a request of its own, concurrently, so that one
                               that hangs or fails does not affect the others
        reads_context = True   the tool is called as `call(arguments, context)`; the Context (see
                               rag_r1/protocols/retriever_query.py) has the question and the earlier turns,
                               and the tool notes in it what it sent for each call
        index                  the name of the index that answered last, for the records; it may change
        close()                a coroutine that closes the tool's connections; a later call opens them again
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def fault(self, arguments: Mapping[str, Any]) -> str | None: ...

    async def call(
        self, arguments: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[Document] | Failure | Refusal]: ...


def call_tool(
    tool: Tool, arguments: Sequence[Mapping[str, Any]], context: Context | None
) -> Awaitable[Sequence[Sequence[Document] | Failure | Refusal]]:
    """Call `tool.call`, with the context if the tool reads it. Returns the awaitable of its results."""
    return tool.call(arguments, context) if getattr(tool, "reads_context", False) else tool.call(arguments)


class Codec(Interface):
    """A tokenizer. `encode` adds no special tokens, and `decode` leaves them out.

    `decode` raises UnknownTokenError for ids that no engine with this vocabulary can have sampled, which
    counts as a failure of the engine. Any other exception counts as a bug.
    """

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
