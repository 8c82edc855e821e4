"""The parts that an episode is given: an engine, a searcher, a codec, as interfaces.

This is what they promise. They are foreign code and may break it: boundary.py checks what they return, and
loop.py types what goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


class Searcher(Interface):
    """Answers all queries of a turn, aligned with them. A failed search is a Failure, never an exception."""

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]: ...


class Codec(Interface):
    """A tokenizer: text to ids without special tokens added, and ids to text with special tokens left out.

    `decode` raises UnknownToken on ids that no engine of this vocabulary can have sampled: these are the
    engine's failure. Anything else that it raises is a fault in code.
    """

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
