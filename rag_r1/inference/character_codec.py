"""A codec for endpoints that accept only text: its tokens are Unicode code points.

The agent core counts and truncates in tokens. If the tokenizer of the endpoint's model is not available, an
episode is measured in characters instead. The limits, which the settings give in tokens, are multiplied by
`CHARS_PER_TOKEN`, the usual length of an English token, and the counts in the episode's record are
characters. With a tokenizer (`--tokenizer`) both are exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rag_r1.agent import Budget, UnknownTokenError
from rag_r1.config.agent_setup import Messages

#: Average number of characters per token.
CHARS_PER_TOKEN = 4


class CharacterCodec:
    """Encodes a text as its code points."""

    def encode(self, text: str) -> list[int]:
        """Return the code points of a text."""
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of code points. Raises UnknownTokenError for a number that is not a code point."""
        try:
            return "".join(map(chr, ids))
        except (ValueError, OverflowError) as error:
            raise UnknownTokenError(f"not a character: {error}") from error

    def chat(self, messages: Messages) -> list[int]:
        """Return chat messages as code points. No model reads them; they only measure the length of a
        prompt."""
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    @staticmethod
    def endpoint_tokens(characters: int) -> int:
        """Return the approximate number of the endpoint's tokens in a text of this many characters, rounded
        up."""
        return math.ceil(characters / CHARS_PER_TOKEN)


def character_budget(budget: Budget) -> Budget:
    """Return the budget with all limits in tokens converted to characters. These are the fields whose names
    end in `_tokens`."""
    limits = {name: value for name, value in vars(budget).items() if name.endswith("_tokens")}
    return replace(budget, **{name: value and value * CHARS_PER_TOKEN for name, value in limits.items()})


def estimate_tokens(value: Any) -> int:
    """Return the approximate number of tokens in a text, or in the JSON of any other value."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return CharacterCodec.endpoint_tokens(len(text))
