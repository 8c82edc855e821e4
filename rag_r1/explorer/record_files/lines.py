"""Reads the complete lines of a record file from a position, so that only the appended part is read again.

In a gzip file a line can be read again without unpacking the members before it (`Position`). The files of a
training have a member for each line (rag_r1/agent/records.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rag_r1.io.bounded_json import MAX_LINE_BYTES
from rag_r1.io.ordinary_files import open_ordinary

#: Number of bytes that are read, or unpacked, at once.
_CHUNK_BYTES = 1 << 20
#: `wbits` of zlib for data with a gzip header and trailer, and the largest window.
_GZIP_WBITS = 31


class Position(NamedTuple):
    """A position in a file. `START` is the beginning."""

    #: In a gzip file, the byte of the file at which a gzip member begins; 0 in a plain file.
    base: int
    #: In a gzip file, the number of unpacked bytes of that member before the position; in a plain file, the
    #: number of bytes of the file.
    offset: int


START = Position(0, 0)


@dataclass(frozen=True)
class Line:
    """A complete line of a file."""

    position: Position
    #: The bytes without the line end; None if the line is longer than MAX_LINE_BYTES.
    data: bytes | None
    #: The position of the next line.
    next: Position


def whole_lines(path: Path, start: Position) -> Iterator[Line]:
    """Yield the complete lines of a file from a position on; an unfinished last line is left out.

    Raises OSError, also for a pipe or a device, and zlib.error for broken gzip data.
    """
    with open_ordinary(path) as file:
        pending = b""  # the beginning of a line whose end has not been read yet
        position = start  # the position of that line
        is_long = False  # whether that line exceeds MAX_LINE_BYTES, so that its beginning is not kept
        for base, offset, data in _chunks(file, start, path.suffix == ".gz"):
            *ends, tail = data.split(b"\n")
            for end in ends:
                offset += len(end) + 1
                line = None if is_long or len(pending) + len(end) > MAX_LINE_BYTES else pending + end
                next_position = Position(base, offset)
                yield Line(position, line, next_position)
                pending, position, is_long = b"", next_position, False
            pending += tail
            if len(pending) > MAX_LINE_BYTES:
                pending, is_long = b"", True


def line_at(path: Path, position: Position, length: int) -> bytes:
    """Read the `length` bytes of a line at its position.

    Raises OSError, zlib.error for broken gzip data, and ValueError if the file is too short.
    """
    parts, missing = [], length
    with open_ordinary(path) as file:
        for _, _, data in _chunks(file, position, path.suffix == ".gz"):
            parts.append(data[:missing])
            missing -= len(parts[-1])
            if not missing:
                return b"".join(parts)
    raise ValueError(f"{path} is shorter than it was")


def _chunks(file: BinaryIO, start: Position, compressed: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield the (unpacked) bytes of a file from a position on, in parts: (base, offset, bytes), with the
    position at which the part begins."""
    base, skip = start
    if not compressed:
        file.seek(skip)
        while data := file.read(_CHUNK_BYTES):
            yield 0, skip, data
            skip += len(data)
        return
    file.seek(base)
    decoder = zlib.decompressobj(_GZIP_WBITS)
    unpacked = 0  # number of bytes that were unpacked from the present member
    while data := file.read(_CHUNK_BYTES):
        has_more = False
        while data or has_more:
            part = decoder.decompress(data, _CHUNK_BYTES)  # limited: kilobytes may unpack to gigabytes
            first, unpacked = unpacked, unpacked + len(part)
            if unpacked > skip:
                yield base, max(first, skip), part[max(skip - first, 0) :]
            has_more = len(part) == _CHUNK_BYTES and not decoder.eof
            data = decoder.unconsumed_tail
            if decoder.eof:
                data = decoder.unused_data
                base, skip, unpacked = file.tell() - len(data), 0, 0
                decoder = zlib.decompressobj(_GZIP_WBITS)
