"""The codec of an episode: encodes and decodes with a Hugging Face tokenizer.

Encoding observations takes a large part of the CPU time of an episode. Therefore encoded texts are cached,
and one codec serves all trajectories of a process: those of one question send similar queries and see the
same documents. And where tiktoken gives the same ids as the tokenizer, it encodes instead (bpe.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rag_r1.agent.interfaces import UnknownTokenError
from rag_r1.agent.tokens.bpe import FastBpe

#: Most texts in the cache. With a thousand tokens each, their ids take about 16 MB.
CACHED_TEXTS = 2048


class TokenizerCodec:
    """Converts text to token ids and back; any thread may encode.

    `vocabulary_size` is the number of ids that the model has, and may be larger than the tokenizer's: Qwen's
    embedding is padded, a policy can sample from the padding, and such a token decodes to an empty text. If
    it is not known (None), every id of 32 bits is accepted. `cache_size` is the most texts whose ids are
    kept.
    """

    def __init__(self, tokenizer: Any, cache_size: int = CACHED_TEXTS, vocabulary_size: int | None = None):
        self.tokenizer = tokenizer
        self.vocabulary_size = 1 << 32 if vocabulary_size is None else vocabulary_size
        self._fast = FastBpe.of(tokenizer)
        self._cached_ids = lru_cache(cache_size)(self._encode_uncached)

    @property
    def start(self) -> list[int]:
        """The ids that the tokenizer puts before a text: a beginning-of-sequence token, or none."""
        return list(self.tokenizer.encode(""))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens added. The caller may modify the list."""
        return self._cached_ids(text).tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids, without special tokens. Raises UnknownTokenError unless all ids
        are in the vocabulary."""
        if len(ids) and max(ids) >= self.vocabulary_size:
            raise UnknownTokenError(f"the id {max(ids)} is not in the vocabulary of {self.vocabulary_size}")
        try:
            if self._fast:
                return self._fast.decode(ids)
            return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        except OverflowError as error:  # raised by tokenizers for a negative id
            raise UnknownTokenError(f"the id {min(ids)} is not in any vocabulary") from error

    def clear_cache(self) -> None:
        """Empty the cache. Benchmarks use this, since making a new codec can take a second."""
        self._cached_ids.cache_clear()

    def _encode_uncached(self, text: str) -> array[int]:
        if self._fast:
            return array("l", self._fast.encode(text))
        return array("l", self.tokenizer.encode(text, add_special_tokens=False))
