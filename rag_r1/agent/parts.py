"""The parts that an episode is given: an engine, tools, a codec, as interfaces.

This is what they promise. They are foreign code and may break it: boundary.py checks what they return, and
loop.py types what goes wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from rag_r1.protocols import Document, Failure


@dataclass(frozen=True)
class Generation:
    """What the engine returned for one turn. `logprobs`: in nats, one for each id, or None for all.
    `aborted`: it stopped for a reason of its own, told in `detail`."""

    token_ids: list[int]
    logprobs: list[float] | None = None
    aborted: bool = False
    detail: str = ""


class UnknownToken(ValueError):
    """Ids that are not in the vocabulary."""


class Engine(Interface):
    """Continues a context. The returned ids hold the stop string, and at most `max_tokens` tokens."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation: ...


class Tool(Interface):
    """Something that the policy can call.

    `parameters` is the JSON schema of the arguments, an object. `call` answers all calls of a turn at once,
    aligned with them; `fault` says what is wrong with arguments, for the policy to read, or None.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def fault(self, arguments: Mapping[str, Any]) -> str | None: ...

    async def call(
        self, arguments: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[Document] | Failure]: ...


class Codec(Interface):
    """A tokenizer: text to ids without special tokens added, and ids to text with special tokens left out.

    `decode` raises UnknownToken on ids that no engine of this vocabulary can have sampled: these are the
    engine's failure. Anything else that it raises is a fault in code.
    """

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
