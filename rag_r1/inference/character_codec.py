"""A character codec for endpoints that accept only text: its tokens are Unicode code points.

The agent core counts and cuts in tokens. Without the tokenizer of the model behind an endpoint, an episode is
played in characters: its limits, which the settings give in tokens, are multiplied by `PER_TOKEN`, the usual
length of a token in English, and the counts of its record are characters. With the tokenizer (`--tokenizer`)
both are exact.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rag_r1.agent import Budget, UnknownTokenError
from rag_r1.config.agent_setup import Messages

#: Characters that stand for a token.
PER_TOKEN = 4


class CharacterCodec:
    """Text to code points and back."""

    def encode(self, text: str) -> list[int]:
        """The code points of a text."""
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text. Raises UnknownTokenError for numbers that are no code points."""
        try:
            return "".join(map(chr, ids))
        except (ValueError, OverflowError) as error:
            raise UnknownTokenError(f"not a character: {error}") from error

    def chat(self, messages: Messages) -> list[int]:
        """Chat messages as code points. No model reads them; they only measure the length of a prompt."""
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))


def character_budget(budget: Budget) -> Budget:
    """A budget in tokens as one in characters. Limits of tokens are the fields whose names end so."""
    limits = {name: value for name, value in vars(budget).items() if name.endswith("_tokens")}
    return replace(budget, **{name: value and value * PER_TOKEN for name, value in limits.items()})


def estimate_tokens(text: Any) -> int:
    """About how many tokens a text has, or any JSON value."""
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    return -(-len(text) // PER_TOKEN)
