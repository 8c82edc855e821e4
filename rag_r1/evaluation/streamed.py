"""A streamed completion (server-sent events) as the answer that would have come in one piece.

Who only wants to see a generation grow reads it in this way, and everything behind stays as it is: the same
checks, the same token ids. `Folded` takes the bytes as they arrive; `Growing` is an endpoint that asks for a
stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rag_r1.evaluation.tape import Usage

if TYPE_CHECKING:
    from rag_r1.evaluation.endpoint import Answer, Endpoint

#: Called with the text of a generation so far; a repeated attempt begins anew.
OnText = Callable[[str], None]
CONTENT_TYPE = "text/event-stream"


class Folded:
    """The chunks of one completion. Raises ValueError for what is no such stream."""

    def __init__(self, on_text: OnText):
        self.on_text = on_text
        self._rest = b""
        self._choice: dict[str, Any] = {"text": ""}
        self._more: dict[str, Any] = {}
        self._done = False

    def feed(self, part: bytes) -> None:
        """The next bytes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data" and not self._done:
                self._add(value.strip())

    def whole(self) -> bytes:
        """The answer in one piece, as JSON."""
        if not self._done:
            raise ValueError("the stream ended before its end")
        return json.dumps({"choices": [self._choice], **self._more}).encode()

    def _add(self, value: bytes) -> None:
        if value == b"[DONE]":
            self._done = True
            return
        data = json.loads(value)
        if not isinstance(data, dict) or "error" in data:
            raise ValueError("the stream has an error")
        if data.get("usage"):
            self._more["usage"] = data["usage"]
        choices = data.get("choices") or [{}]
        piece = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        self._choice.update({key: piece[key] for key in ("finish_reason", "stop_reason") if key in piece})
        if isinstance(piece.get("token_ids"), list):
            self._choice.setdefault("token_ids", []).extend(piece["token_ids"])
        told = piece.get("logprobs")
        if isinstance(told, dict) and isinstance(told.get("token_logprobs"), list):
            logprobs = self._choice.setdefault("logprobs", {"token_logprobs": []})
            logprobs["token_logprobs"].extend(told["token_logprobs"])
        if isinstance(piece.get("text"), str) and piece["text"]:
            self._choice["text"] += piece["text"]
            self.on_text(self._choice["text"])


class Growing:
    """An endpoint whose completions are streamed, for one episode."""

    def __init__(self, endpoint: Endpoint, on_text: OnText):
        self.endpoint, self.on_text = endpoint, on_text

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Answer],
        useless: Callable[[Usage], None] = lambda usage: None,
        most_tokens: int = 0,
    ) -> tuple[Answer, Usage]:
        """See Endpoint.post."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return await self.endpoint.post(path, streamed, read, useless, most_tokens, self.on_text)
