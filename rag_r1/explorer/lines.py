"""Reads the whole lines of a record file from a position on, so that only what was appended is read again.

A position is (`base`, `offset`). In a plain file `base` is 0 and `offset` counts its bytes. In a gzip file
`base` is where a member begins, in bytes of the file, and `offset` counts the unpacked bytes of that member:
so one line is found again without unpacking what is before its member (a training's files have a member for
each line; rag_r1/agent/records.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rag_r1.io.bounded_json import MAX_LINE_BYTES

#: Most bytes that are read, and unpacked, at once.
_CHUNK_BYTES = 1 << 20
#: `wbits` of zlib for data with a gzip header and trailer, and the largest window.
_GZIP_WBITS = 31

#: (base, offset) of the top of the module.
Position = tuple[int, int]
START: Position = (0, 0)


@dataclass(frozen=True)
class Line:
    """A whole line: its position, its bytes without the end (None: longer than MAX_LINE_BYTES), and the
    position that follows it."""

    position: Position
    data: bytes | None
    next: Position


def whole_lines(path: Path, start: Position) -> Iterator[Line]:
    """Yields the lines from a position on that have an end. Raises OSError, and zlib.error for broken gzip
    data."""
    with path.open("rb") as file:
        pending = b""  # the begin of a line whose end was not read yet
        position = start  # of that line
        is_long = False  # whether it is longer than MAX_LINE_BYTES; then its begin is not kept
        for base, offset, data in _chunks(file, start, path.suffix == ".gz"):
            *ends, tail = data.split(b"\n")
            for end in ends:
                offset += len(end) + 1
                line = None if is_long or len(pending) + len(end) > MAX_LINE_BYTES else pending + end
                yield Line(position, line, (base, offset))
                pending, position, is_long = b"", (base, offset), False
            pending += tail
            if len(pending) > MAX_LINE_BYTES:
                pending, is_long = b"", True


def line_at(path: Path, position: Position, length: int) -> bytes:
    """The `length` bytes of a line at its position. Raises OSError, zlib.error, and ValueError if the file
    has fewer."""
    parts, missing = [], length
    with path.open("rb") as file:
        for _, _, data in _chunks(file, position, path.suffix == ".gz"):
            parts.append(data[:missing])
            missing -= len(parts[-1])
            if not missing:
                return b"".join(parts)
    raise ValueError(f"{path} is shorter than it was")


def _chunks(file: BinaryIO, start: Position, compressed: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yields the bytes from a position on in pieces, each as (base, offset, bytes)."""
    base, skip = start
    if not compressed:
        file.seek(skip)
        while data := file.read(_CHUNK_BYTES):
            yield 0, skip, data
            skip += len(data)
        return
    file.seek(base)
    decoder = zlib.decompressobj(_GZIP_WBITS)
    unpacked = 0  # bytes of the member
    while data := file.read(_CHUNK_BYTES):
        has_more = False
        while data or has_more:
            text = decoder.decompress(data, _CHUNK_BYTES)  # a few kilobytes can unpack to gigabytes
            begin, unpacked = unpacked, unpacked + len(text)
            if unpacked > skip:
                yield base, max(begin, skip), text[max(skip - begin, 0) :]
            has_more = len(text) == _CHUNK_BYTES and not decoder.eof
            data = decoder.unconsumed_tail
            if decoder.eof:
                data = decoder.unused_data
                base, skip, unpacked = file.tell() - len(data), 0, 0
                decoder = zlib.decompressobj(_GZIP_WBITS)
