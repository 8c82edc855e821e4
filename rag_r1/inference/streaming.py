"""Assembles a streamed completion (server-sent events) into a complete response.

A caller that shows a generation while it grows gets its pieces in this way, and everything behind stays the
same: the checks, the token ids. `StreamAssembler` takes the bytes as they arrive, looks at each of them once,
and refuses a stream that is more than its request allowed (response_limits.py). `Endpoint.post` requests
streams.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from rag_r1.inference.response_limits import MAX_ANSWER_VALUES, ResponseLimits
from rag_r1.io.bounded_aiohttp import read_body

#: Called with the next piece of a generation's text.
OnPiece = Callable[[str], None]
#: Called at the beginning of a generation, and again if it is begun anew; returns the function for its
#: pieces.
OnText = Callable[[], OnPiece]
CONTENT_TYPE = "text/event-stream"
#: Bytes of a stream that are read before other tasks have their turn.
_SLICE_BYTES = 16 << 10


class StreamAssembler:
    """Assembles the chunks of one completion. Raises ValueError for what is not such a stream, and for one
    beyond its limits."""

    def __init__(self, on_piece: OnPiece, limits: ResponseLimits | None = None):
        self.on_piece = on_piece
        self.limits = limits or ResponseLimits()
        self._line = bytearray()  # the line whose end has not arrived
        self._bytes = self._lines = self._events = self._characters = 0
        self._pieces: list[str] = []
        self._ids: list[Any] | None = None
        self._logprobs: list[Any] | None = None
        self._choice: dict[str, Any] = {}
        self._usage: Any = None
        self._done = False

    def feed(self, part: bytes) -> None:
        """Read the next bytes. Raises ValueError."""
        self._bytes += len(part)
        if self._bytes > self.limits.bytes:
            raise ValueError(f"it has more than {self.limits.bytes} bytes")
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            self._line += part[start:end]
            self._end_line()
            start = end + 1
        self._line += part[start:]
        if len(self._line) > self.limits.line_bytes:
            raise ValueError(f"it has a line of more than {self.limits.line_bytes} bytes")

    def message(self) -> bytes:
        """The whole answer, as JSON. Raises ValueError if the stream has not ended with `[DONE]`."""
        if not self._done:
            raise ValueError("the stream broke off")
        choice = {"text": "".join(self._pieces), **self._choice}
        if self._ids is not None:
            choice["token_ids"] = self._ids
        if self._logprobs is not None:
            choice["logprobs"] = {"token_logprobs": self._logprobs}
        usage = {"usage": self._usage} if self._usage else {}
        return json.dumps({"choices": [choice], **usage}).encode()

    def _end_line(self) -> None:
        """Read the line that is complete now."""
        line, self._line = bytes(self._line), bytearray()
        self._lines += 1
        if self._lines > self.limits.lines:
            raise ValueError(f"it has more than {self.limits.lines} lines")
        if len(line) > self.limits.line_bytes:
            raise ValueError(f"it has a line of more than {self.limits.line_bytes} bytes")
        name, _, value = line.partition(b":")
        if name == b"data" and not self._done:
            self._add(value.strip())

    def _add(self, value: bytes) -> None:
        """Add the chunk in the data of an event."""
        if value == b"[DONE]":
            self._done = True
            return
        self._events += 1
        if self.limits.events is not None and self._events > self.limits.events:
            raise ValueError(f"it has more than {self.limits.events} events")
        data = json.loads(value)
        if not isinstance(data, dict) or "error" in data:
            raise ValueError("the stream has an error")
        if data.get("usage"):
            self._usage = data["usage"]
        choices = data.get("choices") or [{}]
        piece = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        self._choice.update({key: piece[key] for key in ("finish_reason", "stop_reason") if key in piece})
        if isinstance(piece.get("token_ids"), list):
            self._ids = [] if self._ids is None else self._ids
            self._ids.extend(_numbers(piece["token_ids"]))
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("token_logprobs"), list):
            self._logprobs = [] if self._logprobs is None else self._logprobs
            self._logprobs.extend(_numbers(logprobs["token_logprobs"]))
        if len(self._ids or ()) + len(self._logprobs or ()) > MAX_ANSWER_VALUES:
            raise ValueError(f"it has more than {MAX_ANSWER_VALUES:,} values")
        text = piece.get("text") if isinstance(piece.get("text"), str) else ""
        self._characters += len(text)
        self.limits.check(self._characters, len(self._ids or ()))
        if text:
            self._pieces.append(text)
            self.on_piece(text)


def _numbers(values: list[Any]) -> list[Any]:
    """The values with None for those that are not numbers, which the reader of the answer refuses: they are
    held until the end, and lists of lists take many times the bytes in which they came."""
    return [value if isinstance(value, int | float) else None for value in values]


async def assemble_body(
    response: aiohttp.ClientResponse, limits: ResponseLimits, on_text: OnText | None
) -> bytes:
    """The body of a response, assembled if it is a stream. Raises ValueError for what is beyond the limits,
    or is not a stream."""
    kind = response.headers.get("Content-Type", "")
    if on_text is None or response.status != 200 or not kind.startswith(CONTENT_TYPE):
        return await read_body(response, limits.bytes)
    assembler = StreamAssembler(on_text(), limits)
    async for part in response.content.iter_any():
        for start in range(0, len(part), _SLICE_BYTES):
            if start:
                await asyncio.sleep(0)
            assembler.feed(part[start : start + _SLICE_BYTES])
    return assembler.message()
