"""Reads the whole lines of a record file from a place on, so that only what was appended is read again.

A place is (`base`, `offset`). In a plain file `base` is 0 and `offset` counts its bytes. In a gzip file
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

#: Bytes that are read, and unpacked, at once.
_CHUNK = 1 << 20
#: zlib's code for a gzip header and trailer.
_GZIP = 31

Place = tuple[int, int]
START: Place = (0, 0)


@dataclass(frozen=True)
class Line:
    """A whole line: its place, its bytes without the end (None: longer than MAX_LINE_BYTES), and the place
    that follows it."""

    place: Place
    data: bytes | None
    next: Place


def whole_lines(path: Path, start: Place) -> Iterator[Line]:
    """The lines from a place on that have an end. Raises OSError, and zlib.error for broken gzip data."""
    with path.open("rb") as file:
        pending, place, is_long = b"", start, False
        for base, offset, data in _chunks(file, start, path.suffix == ".gz"):
            *ends, tail = data.split(b"\n")
            for end in ends:
                offset += len(end) + 1
                line = None if is_long or len(pending) + len(end) > MAX_LINE_BYTES else pending + end
                yield Line(place, line, (base, offset))
                pending, place, is_long = b"", (base, offset), False
            pending += tail
            if len(pending) > MAX_LINE_BYTES:
                pending, is_long = b"", True


def line_at(path: Path, place: Place, length: int) -> bytes:
    """The `length` bytes of a line at its place. Raises OSError, zlib.error, and ValueError if the file has
    fewer."""
    parts, missing = [], length
    with path.open("rb") as file:
        for _, _, data in _chunks(file, place, path.suffix == ".gz"):
            parts.append(data[:missing])
            missing -= len(parts[-1])
            if not missing:
                return b"".join(parts)
    raise ValueError(f"{path} is shorter than it was")


def _chunks(file: BinaryIO, start: Place, compressed: bool) -> Iterator[tuple[int, int, bytes]]:
    """The bytes from a place on, in pieces, each with its place."""
    base, skip = start
    if not compressed:
        file.seek(skip)
        while data := file.read(_CHUNK):
            yield 0, skip, data
            skip += len(data)
        return
    file.seek(base)
    decoder, unpacked = zlib.decompressobj(_GZIP), 0
    while data := file.read(_CHUNK):
        has_more = False
        while data or has_more:
            text = decoder.decompress(data, _CHUNK)  # a few kilobytes can unpack to gigabytes
            begin, unpacked = unpacked, unpacked + len(text)
            if unpacked > skip:
                yield base, max(begin, skip), text[max(skip - begin, 0) :]
            has_more = len(text) == _CHUNK and not decoder.eof
            data = decoder.unconsumed_tail
            if decoder.eof:
                data = decoder.unused_data
                base, skip, unpacked = file.tell() - len(data), 0, 0
                decoder = zlib.decompressobj(_GZIP)
