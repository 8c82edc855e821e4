"""Assembles a streamed completion (server-sent events) into a complete response.

A caller that shows a generation while it grows receives its pieces from the stream. All later code, such as
the checks and the reading of token ids, works on the assembled response and does not differ between the two
cases. `Endpoint.post` requests streams. `StreamAssembler` takes the bytes as they arrive, reads each of them
once, and refuses a stream that is larger than its request allowed (response_limits.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from rag_r1.inference.response_limits import MAX_ANSWER_VALUES, ResponseLimits
from rag_r1.inference.response_metadata import error_message
from rag_r1.io.bounded_aiohttp import read_body

#: Called with the next piece of a generation's text.
OnPiece = Callable[[str], None]
#: Called when a generation starts, and again if it is restarted; returns the function for its pieces.
OnText = Callable[[], OnPiece]
#: The content type of a stream.
CONTENT_TYPE = "text/event-stream"
#: Bytes of a stream that are processed before other tasks of the event loop can run.
_SLICE_BYTES = 16 << 10


class StreamAssembler:
    """Assembles the chunks of one completion. Raises ValueError for input that is not such a stream, or is
    beyond its limits, and RecursionError for JSON that is nested too deeply."""

    def __init__(self, on_piece: OnPiece, limits: ResponseLimits | None = None):
        self.on_piece = on_piece
        self.limits = limits or ResponseLimits()
        self._line = bytearray()  # the current line, until its end arrives
        self._bytes = self._lines = self._events = self._characters = 0
        self._pieces: list[str] = []
        self._ids: list[Any] = []
        self._logprobs: list[Any] | None = None
        self._choice: dict[str, Any] = {}
        self._usage: Any = None
        self._done = False

    def feed(self, part: bytes) -> None:
        """Process the next bytes. Raises the errors of the class."""
        self._bytes += len(part)
        if self._bytes > self.limits.bytes:
            raise ValueError(f"it has more than {self.limits.bytes} bytes")
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            self._extend_line(part[start:end])
            self._end_line()
            start = end + 1
        self._extend_line(part[start:])

    def message(self) -> bytes:
        """Return the complete response as JSON. Raises the errors of the class, also if the stream did not
        end with `[DONE]`."""
        if self._line:
            self._end_line()
        if not self._done:
            raise ValueError("the stream broke off")
        choice = {"text": "".join(self._pieces), **self._choice}
        if self._ids:
            choice["token_ids"] = self._ids
        if self._logprobs is not None:
            choice["logprobs"] = {"token_logprobs": self._logprobs}
        usage = {"usage": self._usage} if self._usage else {}
        return json.dumps({"choices": [choice], **usage}).encode()

    def _extend_line(self, part: bytes) -> None:
        """Add bytes to the current line."""
        self._line += part
        if len(self._line) > self.limits.line_bytes:
            raise ValueError(f"it has a line of more than {self.limits.line_bytes} bytes")

    def _end_line(self) -> None:
        """Process the current line, which is complete."""
        line, self._line = bytes(self._line), bytearray()
        self._lines += 1
        if self._lines > self.limits.lines:
            raise ValueError(f"it has more than {self.limits.lines} lines")
        name, _, value = line.partition(b":")
        if name == b"data" and not self._done:
            self._add(value.strip())

    def _add(self, value: bytes) -> None:
        """Add the chunk in an event's data."""
        if value == b"[DONE]":
            self._done = True
            return
        self._events += 1
        if self.limits.events is not None and self._events > self.limits.events:
            raise ValueError(f"it has more than {self.limits.events} events")
        data = json.loads(value)
        if not isinstance(data, dict):
            raise ValueError("an event of the stream is not a JSON object")
        if data.get("error"):  # some servers send a null with each chunk
            raise ValueError(f"the stream has an error{error_message(value)}")
        if data.get("usage"):
            self._usage = data["usage"]
        choices = data.get("choices") or [{}]
        if isinstance(choices, list) and isinstance(choices[0], dict):
            self._add_choice(choices[0])

    def _add_choice(self, piece: dict[str, Any]) -> None:
        """Add a chunk's part of the completion: its text, token ids, log-probs and the reason of its end."""
        for key in ("finish_reason", "stop_reason"):  # chunks after the last with text may have nulls again
            if key in piece and (piece[key] is not None or key not in self._choice):
                self._choice[key] = piece[key]
        if isinstance(piece.get("token_ids"), list):
            self._ids.extend(_numbers(piece["token_ids"]))
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("token_logprobs"), list):
            self._logprobs = self._logprobs or []
            self._logprobs.extend(_numbers(logprobs["token_logprobs"]))
        if len(self._ids) + len(self._logprobs or ()) > MAX_ANSWER_VALUES:
            raise ValueError(f"it has more than {MAX_ANSWER_VALUES:,} values")
        text = piece.get("text") if isinstance(piece.get("text"), str) else ""
        self._characters += len(text)
        self.limits.check(self._characters, len(self._ids))
        if text:
            self._pieces.append(text)
            self.on_piece(text)


def _numbers(values: list[Any]) -> list[Any]:
    """Return the values, with None for each one that is not a number.

    The reader of the response refuses None. A hostile value must not be kept until then: lists of lists need
    many times the memory of the bytes they arrived in.
    """
    return [value if type(value) in (int, float) else None for value in values]


async def assemble_body(
    response: aiohttp.ClientResponse, limits: ResponseLimits, on_text: OnText | None
) -> bytes:
    """Return the body of a response, assembled if `on_text` is given and the response is a stream. Raises
    ValueError if it exceeds the limits, the errors of `StreamAssembler`, and aiohttp's."""
    kind = response.headers.get("Content-Type", "")
    if on_text is None or response.status != 200 or not kind.lower().startswith(CONTENT_TYPE):
        return await read_body(response, limits.bytes)
    assembler = StreamAssembler(on_text(), limits)
    async for part in response.content.iter_any():
        for start in range(0, len(part), _SLICE_BYTES):
            if start:
                await asyncio.sleep(0)
            assembler.feed(part[start : start + _SLICE_BYTES])
    return assembler.message()
