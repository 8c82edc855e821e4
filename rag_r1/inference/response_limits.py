"""Limits on the size of an endpoint's response, derived from the request.

A server may ignore `max_tokens`, or send an answer that has no end. What an answer may cost here therefore
follows from the request: so many bytes, characters and events for each token that it allows. The limits are
several times what servers send (a chunk of vLLM with log-probs has about 500 bytes, an average token four
characters), so an answer beyond them is not the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Most bytes of an answer, whatever the request allows.
MAX_ANSWER_BYTES = 32 << 20
#: Most JSON values of an answer; a token has about five, and three for each log-prob beside it.
MAX_ANSWER_VALUES = 1_500_000
#: Bytes that an answer may have beside its tokens, and a line of a stream beside the ids of the prompt.
_HEAD_BYTES = 1 << 20
#: Bytes of one token with what stands around it, of each log-prob beside it, and of a token id of the prompt,
#: which vLLM returns too.
_TOKEN_BYTES, _LOGPROB_BYTES, _PROMPT_BYTES = 1024, 128, 16
#: Characters of a token, on average over a text, and characters that every text may have beyond these.
_TOKEN_CHARACTERS, _FREE_CHARACTERS = 128, 1024
#: Events of a stream for a token (servers send one for each token or for several), and events beyond these.
_TOKEN_EVENTS, _FREE_EVENTS = 2, 1000
#: Lines of an event: its data, its end, and what may stand beside them (a kind, an id, a comment).
_EVENT_LINES = 4
#: Keys of a request that limit the tokens of its answer.
_LIMIT_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True)
class ResponseLimits:
    """The limits of one answer: `tokens` and characters (None: only `bytes` limits them), bytes in all and
    in one line of a stream, and events and lines of a stream."""

    tokens: int | None = None
    characters: int | None = None
    bytes: int = MAX_ANSWER_BYTES
    line_bytes: int = _HEAD_BYTES
    events: int | None = None
    lines: int = 1_000_000

    @classmethod
    def of(cls, body: Mapping[str, Any], prompt_tokens: int) -> ResponseLimits:
        """The limits of the answer to a request; only bytes are limited if its body has no limit of
        tokens."""
        limits = [body[name] for name in _LIMIT_KEYS if type(body.get(name)) is int]
        prompt_bytes = _PROMPT_BYTES * prompt_tokens
        if not limits:
            return cls(bytes=MAX_ANSWER_BYTES, line_bytes=_HEAD_BYTES + prompt_bytes)
        tokens = max(limits)
        logprob_counts = [body[name] for name in ("logprobs", "top_logprobs") if type(body.get(name)) is int]
        per_token = _TOKEN_BYTES + _LOGPROB_BYTES * max(logprob_counts, default=0)
        return cls(
            tokens=tokens,
            characters=_FREE_CHARACTERS + _TOKEN_CHARACTERS * tokens,
            bytes=min(MAX_ANSWER_BYTES, _HEAD_BYTES + prompt_bytes + per_token * tokens),
            line_bytes=_HEAD_BYTES + prompt_bytes,
            events=(events := _FREE_EVENTS + _TOKEN_EVENTS * tokens),
            lines=_EVENT_LINES * events,
        )

    def check(self, characters: int, tokens: int) -> None:
        """Raises ValueError for a text, or for token ids, that the request did not allow."""
        if self.characters is not None and characters > self.characters:
            raise ValueError(f"it has more text than max_tokens {self.tokens} allows")
        if self.tokens is not None and tokens > self.tokens:
            raise ValueError(f"it has more than max_tokens {self.tokens} tokens")
