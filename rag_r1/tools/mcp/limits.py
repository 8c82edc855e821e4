"""Limits on what an MCP server may send, checked as bytes before they are parsed.

A message of a few megabytes can hold a million values, and for each of them the package mcp creates several
objects on the event loop. So the length, the values and the nesting of a message are checked first. Also
limited are all messages and bytes between two of our requests, when a server may send notifications, e.g. of
progress and logs. Anything beyond these limits raises `TooLargeError`; streams.py then ends the connection or
the request.
"""

from __future__ import annotations

import codecs

from rag_r1.io.bounded_json import check_json
from rag_r1.io.errors import TooLargeError

#: Longest message, in bytes.
MAX_MESSAGE_BYTES = 8 << 20
#: Most values in a message, and most levels of lists and objects.
MAX_VALUES, MAX_DEPTH = 50_000, 64
#: Most messages, and most bytes, between two requests or in one HTTP response.
MAX_MESSAGES, MAX_BYTES = 10_000, 64 << 20
#: Longest line of an event that is not data but an id, a type or a comment.
_MAX_FIELD_BYTES = 4096


def check_size(size: int) -> None:
    """Raise TooLargeError if a message has too many bytes."""
    if size > MAX_MESSAGE_BYTES:
        raise TooLargeError(f"a message has more than {MAX_MESSAGE_BYTES >> 20} MiB")


def check_message(data: bytes) -> None:
    """Raise TooLargeError if a JSON text has too many bytes, values or levels. Takes linear time."""
    check_size(len(data))
    try:
        check_json(data, MAX_VALUES, MAX_DEPTH)
    except TooLargeError as error:
        raise TooLargeError(f"a message{str(error).removeprefix('it')}") from None


class TrafficAllowance:
    """Counts how many messages and bytes a server may still send before our next request."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Allow the full amount again, because a request is sent."""
        self._messages_left, self._bytes_left = MAX_MESSAGES, MAX_BYTES

    def spend(self, *, n_bytes: int = 0, n_messages: int = 0) -> None:
        """Count what a server has sent. Raises TooLargeError if it is more than allowed."""
        self._messages_left -= n_messages
        self._bytes_left -= n_bytes
        if self._messages_left < 0 or self._bytes_left < 0:
            raise TooLargeError(
                f"more than {MAX_MESSAGES:,} messages or {MAX_BYTES >> 20} MiB for one request"
            )


class LineSplitter:
    """Splits arriving bytes into lines. The stored part of an incomplete line is limited. The caller checks
    complete lines, which can exceed this limit by the bytes that arrived together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the lines that are now complete, without their line ends. Raises TooLargeError
        if the line that has not ended is too long."""
        *complete, remainder = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*self._parts, complete[0]])
            self._parts, self._size = [], 0
        self._parts.append(remainder)
        self._size += len(remainder)
        check_size(self._size)
        return complete


class EventChecker:
    """Reads the lines of server-sent events, and checks the message in each event when it is complete."""

    def __init__(self, allowance: TrafficAllowance):
        self._allowance = allowance
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, line: bytes) -> None:
        """Read the next line; an empty line ends the event. Raises TooLargeError if a line or a message is
        too large, or if the server has sent too many messages."""
        line = line.removeprefix(codecs.BOM_UTF8)
        if line.startswith(b"data:"):
            self._data.append(line[5:])
            self._size += len(line)
            check_size(self._size)
        elif len(line) > _MAX_FIELD_BYTES:
            raise TooLargeError(f"an event has a line of more than {_MAX_FIELD_BYTES} bytes beside its data")
        elif not line:
            self._allowance.spend(n_messages=1)
            check_message(b"\n".join(self._data))
            self._data, self._size = [], 0
