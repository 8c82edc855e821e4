"""Limits on what an MCP server may send, checked as bytes before they are parsed.

A message of a few megabytes can hold a million values, for each of which the package makes several objects on
the event loop. So a message's length, values and nesting are counted first, and so are messages and bytes in
all: a server may send so much unasked, notifications of progress and of logs for instance, between two
requests of ours. What is beyond these limits raises `TooLargeError`; streams.py says what follows from
it.
"""

from __future__ import annotations

import codecs

from rag_r1.io.bounded_json import check_json
from rag_r1.io.errors import TooLargeError

#: Longest message, in bytes.
MAX_MESSAGE_BYTES = 8 << 20
#: Most values of a message, and levels of lists and objects.
MAX_VALUES, MAX_DEPTH = 50_000, 64
#: Most messages, and bytes, between two requests, or in one HTTP response.
MAX_MESSAGES, MAX_BYTES = 10_000, 64 << 20
#: Longest line of an event that is no data: an id, a kind, a comment.
_MAX_FIELD_BYTES = 4096


def check_message(data: bytes) -> None:
    """Raises TooLargeError for a JSON text of too many bytes, values or levels. Takes time linear in the
    bytes."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLargeError(f"a message has more than {MAX_MESSAGE_BYTES >> 20} MiB")
    try:
        check_json(data, MAX_VALUES, MAX_DEPTH)
    except TooLargeError as error:
        raise TooLargeError(f"a message{str(error).removeprefix('it')}") from None


class TrafficAllowance:
    """What a server may still send."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A request is sent."""
        self._messages, self._bytes = MAX_MESSAGES, MAX_BYTES

    def spend(self, size: int, messages: int = 0) -> None:
        """Raises TooLargeError."""
        self._messages -= messages
        self._bytes -= size
        if self._messages < 0 or self._bytes < 0:
            raise TooLargeError(
                f"more than {MAX_MESSAGES:,} messages or {MAX_BYTES >> 20} MiB for one request"
            )


class LineSplitter:
    """Cuts what arrives into lines. Raises TooLargeError for one that is too long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete, without their ends."""
        *complete, remainder = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*self._parts, complete[0]])
            self._parts, self._size = [], 0
        self._parts.append(remainder)
        self._size += len(remainder)
        if self._size > MAX_MESSAGE_BYTES:
            raise TooLargeError(f"a message has more than {MAX_MESSAGE_BYTES >> 20} MiB")
        return complete


class EventSplitter:
    """The lines of server-sent events, of which each event is checked as a message when it is complete."""

    def __init__(self, allowance: TrafficAllowance):
        self._allowance = allowance
        self._data: list[bytes] = []
        self._size = 0

    def line(self, line: bytes) -> None:
        """The next line; an empty one ends the event. Raises TooLargeError."""
        line = line.removeprefix(codecs.BOM_UTF8)
        if line.startswith(b"data:"):
            self._data.append(line[5:])
            self._size += len(line)
            if self._size > MAX_MESSAGE_BYTES:
                raise TooLargeError(f"a message has more than {MAX_MESSAGE_BYTES >> 20} MiB")
        elif len(line) > _MAX_FIELD_BYTES:
            raise TooLargeError(f"an event has a line of more than {_MAX_FIELD_BYTES} bytes that is no data")
        elif not line:
            self._allowance.spend(0, 1)
            check_message(b"\n".join(self._data))
            self._data, self._size = [], 0
