"""A character codec for endpoints that accept only text: its tokens are Unicode code points.

The agent core counts and cuts in tokens. Without the tokenizer of the model behind an endpoint, an episode is
played in characters: its limits, which the settings give in tokens, are multiplied by `CHARS_PER_TOKEN`, the
usual length of a token in English, and the counts of its record are characters. With the tokenizer
(`--tokenizer`) both are exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rag_r1.agent import Budget, UnknownTokenError
from rag_r1.config.agent_setup import Messages

#: Characters that stand for a token.
CHARS_PER_TOKEN = 4


class CharacterCodec:
    """Encodes text as code points, and decodes them."""

    def encode(self, text: str) -> list[int]:
        """The code points of a text."""
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of code points. Raises UnknownTokenError for a number that is not one."""
        try:
            return "".join(map(chr, ids))
        except (ValueError, OverflowError) as error:
            raise UnknownTokenError(f"not a character: {error}") from error

    def chat(self, messages: Messages) -> list[int]:
        """Chat messages as code points. No model reads them; they only measure the length of a prompt."""
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    @staticmethod
    def endpoint_tokens(characters: int) -> int:
        """About how many of an endpoint's tokens so many characters are, rounded up."""
        return math.ceil(characters / CHARS_PER_TOKEN)


def character_budget(budget: Budget) -> Budget:
    """A budget in tokens as one in characters: the fields whose names end in `_tokens` are multiplied."""
    limits = {name: value for name, value in vars(budget).items() if name.endswith("_tokens")}
    return replace(budget, **{name: value and value * CHARS_PER_TOKEN for name, value in limits.items()})


def estimate_tokens(value: Any) -> int:
    """About how many tokens a text has, or any JSON value."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return CharacterCodec.endpoint_tokens(len(text))
