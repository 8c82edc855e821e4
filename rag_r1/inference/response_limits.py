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

#: A larger answer than this many bytes is none, whatever was asked for.
MAX_ANSWER_BYTES = 32 << 20
#: Nor is one of more JSON values; a token has about five, and three for each log-prob beside it.
MAX_ANSWER_VALUES = 1_500_000
#: Of an answer beside its tokens, and of one line of a stream.
_HEAD_BYTES = 1 << 20
#: Of one token with what stands around it, of each log-prob beside it, and of a token id of the prompt, which
#: vLLM returns too.
_TOKEN_BYTES, _LOGPROB_BYTES, _PROMPT_BYTES = 1024, 128, 16
#: Characters of a token, on average over a text; and of the shortest text that is not looked at.
_TOKEN_CHARACTERS, _FEW_CHARACTERS = 128, 1024
#: Events of a stream: servers send one for each token or for several, and some at both ends.
_TOKEN_EVENTS, _FEW_EVENTS = 2, 1000
#: Lines of an event: its data, its end, and what may stand beside them (a kind, an id, a comment).
_EVENT_LINES = 4
#: Names of the limit of tokens in a request.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


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
        """Of the answer to a request; a body that names no limit of tokens has only that of bytes."""
        limits = [body[name] for name in _LIMITS if type(body.get(name)) is int]
        prompt_bytes = _PROMPT_BYTES * prompt_tokens
        if not limits:
            return cls(bytes=MAX_ANSWER_BYTES, line_bytes=_HEAD_BYTES + prompt_bytes)
        tokens = max(limits)
        logprob_counts = [body[name] for name in ("logprobs", "top_logprobs") if type(body.get(name)) is int]
        per_token = _TOKEN_BYTES + _LOGPROB_BYTES * max(logprob_counts, default=0)
        return cls(
            tokens=tokens,
            characters=_FEW_CHARACTERS + _TOKEN_CHARACTERS * tokens,
            bytes=min(MAX_ANSWER_BYTES, _HEAD_BYTES + prompt_bytes + per_token * tokens),
            line_bytes=_HEAD_BYTES + prompt_bytes,
            events=(events := _FEW_EVENTS + _TOKEN_EVENTS * tokens),
            lines=_EVENT_LINES * events,
        )

    def check(self, characters: int, tokens: int) -> None:
        """Raises ValueError for a text, or for token ids, that the request did not allow."""
        if self.characters is not None and characters > self.characters:
            raise ValueError(f"it has more text than max_tokens {self.tokens} allows")
        if self.tokens is not None and tokens > self.tokens:
            raise ValueError(f"it has more than max_tokens {self.tokens} tokens")
