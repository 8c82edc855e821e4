"""The interfaces of engines, tools and codecs.

They are a contract that the implementations, which are foreign code, may break: validation.py checks what
they return, and episode.py and tool_executor.py turn whatever goes wrong into typed failures.
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
    """The tokens that an engine returned for one turn. `logprobs`: one for each id, in nats; None: the engine
    gives none. `aborted`: the engine stopped early, for the reason in `detail`."""

    token_ids: list[int]
    logprobs: list[float] | None = None
    aborted: bool = False
    detail: str = ""


class UnknownTokenError(ValueError):
    """A token id is not in the vocabulary."""


class Engine(Interface):
    """Continues a context by at most `max_tokens` tokens; the returned ids include the stop string."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation: ...


class Tool(Interface):
    """Something that the policy can call.

    `parameters` is the JSON schema of the arguments, an object. `call` answers all calls of a turn at once,
    aligned with them; `fault` returns what is wrong with arguments, for the policy to read, or None. `fault`
    must not block: what takes long to load is loaded by the first call.

    If checking arguments may take long, a tool has a coroutine `checked(arguments)` as well, which returns
    the same as `fault` and is awaited instead.

    A tool may also have `limits`, a ToolLimits (rag_r1/options/tool_limits.py), and `together = False`: the
    calls of a turn are then made one by one, side by side, so that one that hangs or fails costs itself
    alone. With `reads_context = True` it is called as `call(arguments, context)` (`call_tool`). The Context,
    of rag_r1/protocols/retriever_query.py, tells the question and the earlier turns, and the tool writes into
    it what it has sent for the calls.
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
    """Calls `tool.call`, with the context if the tool reads it."""
    return tool.call(arguments, context) if getattr(tool, "reads_context", False) else tool.call(arguments)


class Codec(Interface):
    """A tokenizer: text to ids without special tokens added, and ids to text with special tokens left out.

    `decode` raises UnknownTokenError for ids that no engine with this vocabulary can have sampled; this
    counts as the engine's failure. Any other exception counts as a bug.
    """

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
