"""A Hugging Face tokenizer as the agent core's Codec, which remembers what it has encoded.

To encode observations is a great part of the CPU time that a trajectory takes here. Where tiktoken gives the
same ids it does so (bpe.py). And the trajectories of one question ask alike and so are shown the same
documents; a codec is therefore made once a process, and its trajectories share what it remembers.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rag_r1.agent.bpe import QuickBpe
from rag_r1.agent.parts import UnknownToken

#: Texts that a codec remembers: at a thousand tokens each about 16 MB of ids, and the texts themselves.
REMEMBERED = 2048


class TokenizerCodec:
    """Text to ids and back. Any thread may encode.

    `vocabulary_size` is the number of ids that the model has. It may be more than the tokenizer's: Qwen's
    embedding is padded, a policy can sample from the padding, and such a token is an empty text. None: what
    it is is not known, and any id of 32 bits is taken for one.
    """

    def __init__(self, tokenizer: Any, remembered: int = REMEMBERED, vocabulary_size: int | None = None):
        self.tokenizer = tokenizer
        self.vocabulary_size = 1 << 32 if vocabulary_size is None else vocabulary_size
        self._quick = QuickBpe.of(tokenizer)
        self._known = lru_cache(remembered)(self._encoded)

    @property
    def start(self) -> list[int]:
        """What the tokenizer puts before a bare text: a beginning-of-sequence token, or nothing."""
        return list(self.tokenizer.encode(""))

    def encode(self, text: str) -> list[int]:
        """Ids of a text on its own, without special tokens added. The list is the caller's own."""
        return self._known(text).tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids; an end-of-sequence token leaves no trace in it. Raises UnknownToken unless
        the vocabulary has them all."""
        if len(ids) and max(ids) >= self.vocabulary_size:
            raise UnknownToken(f"the id {max(ids)} is not in the vocabulary of {self.vocabulary_size}")
        try:
            if self._quick:
                return self._quick.decode(ids)
            return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        except OverflowError as error:  # what tokenizers makes of a negative id
            raise UnknownToken(f"the id {min(ids)} is not in any vocabulary") from error

    def forget(self) -> None:
        """Remember nothing of what has been encoded so far."""
        self._known.cache_clear()

    def _encoded(self, text: str) -> array[int]:
        if self._quick:
            return array("l", self._quick.encode(text))
        return array("l", self.tokenizer.encode(text, add_special_tokens=False))
