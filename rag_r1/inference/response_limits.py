"""Limits the size of an endpoint's response, depending on its request.

A server may ignore `max_tokens`, or send an endless answer. So the bytes, characters and events of an answer
are limited in proportion to the tokens that the request allows. The limits are several times what servers
send (a chunk of vLLM with log-probs has about 500 bytes, an average token four characters), so that an answer
that exceeds them cannot be the requested one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Most bytes of an answer, whatever the request allows.
MAX_ANSWER_BYTES = 32 << 20
#: Most JSON values of an answer. A token has about five values, and three more for each of its log-probs.
MAX_ANSWER_VALUES = 1_500_000
#: Bytes allowed in an answer besides its tokens, and in a line of a stream besides the ids of the prompt.
_HEAD_BYTES = 1 << 20
#: Bytes per token (with its JSON), per additional log-prob of a token, and per token id of the prompt, which
#: vLLM also returns.
_TOKEN_BYTES, _LOGPROB_BYTES, _PROMPT_BYTES = 1024, 128, 16
#: Characters per token, averaged over a text, and characters allowed in addition.
_TOKEN_CHARACTERS, _FREE_CHARACTERS = 128, 1024
#: Events per token of a stream (a server sends an event for one token or for several), and additional events.
_TOKEN_EVENTS, _FREE_EVENTS = 2, 1000
#: Lines per event: its data, its end, and possibly a type, an id or a comment.
_EVENT_LINES = 4
#: Keys of a request that limit the tokens of its answer.
_LIMIT_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True)
class ResponseLimits:
    """The limits of one answer. None stands for no limit."""

    #: The most tokens that the request allows.
    tokens: int | None = None
    #: Characters of its text.
    characters: int | None = None
    #: Bytes of its body.
    bytes: int = MAX_ANSWER_BYTES
    #: Bytes in one line of a stream.
    line_bytes: int = _HEAD_BYTES
    #: Events and lines of a stream.
    events: int | None = None
    lines: int = 1_000_000

    @classmethod
    def of(cls, body: Mapping[str, Any], prompt_tokens: int) -> ResponseLimits:
        """Return the limits of the answer to a request. If the body does not limit the tokens, only bytes and
        lines are limited. A negative number is no limit, as in llama.cpp's server."""
        limits = [body[name] for name in _LIMIT_KEYS if type(body.get(name)) is int and body[name] >= 0]
        prompt_bytes = _PROMPT_BYTES * prompt_tokens
        if not limits:
            return cls(bytes=MAX_ANSWER_BYTES, line_bytes=_HEAD_BYTES + prompt_bytes)
        tokens = max(limits)
        logprob_counts = [body[name] for name in ("logprobs", "top_logprobs") if type(body.get(name)) is int]
        events = _FREE_EVENTS + _TOKEN_EVENTS * tokens
        per_token = _TOKEN_BYTES + _LOGPROB_BYTES * max(logprob_counts, default=0)
        return cls(
            tokens=tokens,
            characters=_FREE_CHARACTERS + _TOKEN_CHARACTERS * tokens,
            bytes=min(MAX_ANSWER_BYTES, _HEAD_BYTES + prompt_bytes + per_token * tokens),
            line_bytes=_HEAD_BYTES + prompt_bytes,
            events=events,
            lines=_EVENT_LINES * events,
        )

    def check(self, characters: int, tokens: int) -> None:
        """Raise ValueError for a text or a number of tokens that the request did not allow."""
        if self.characters is not None and characters > self.characters:
            raise ValueError(f"it has more text than max_tokens {self.tokens} allows")
        if self.tokens is not None and tokens > self.tokens:
            raise ValueError(f"it has more than max_tokens {self.tokens} tokens")
