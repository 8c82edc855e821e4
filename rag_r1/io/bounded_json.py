"""Parses untrusted JSON within limits on its values and nesting.

A body within its byte limit can contain millions of empty lists: 64 MB of them take gigabytes of memory and
block an event loop for many seconds. So the raw bytes are scanned first, to count their values and nesting
levels in linear time. The same is done for JSON files in folders from elsewhere (a model, an index, a run),
and for long lines of JSON.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rag_r1.io.errors import TooLargeError
from rag_r1.io.ordinary_files import open_ordinary

#: Default limit on the nesting of lists and objects.
MAX_DEPTH = 64
#: Default limits of a file that is read whole, such as a manifest, settings or a card.
MAX_FILE_BYTES, MAX_FILE_VALUES = 16 << 20, 500_000
#: Default limits of a line. This many values take about 150 MB as empty lists.
MAX_LINE_BYTES, MAX_LINE_VALUES = 64 << 20, 2_000_000
#: Length, in bytes (or characters, for a text), up to which lines are parsed without counting their values.
_SHORT_LINE = 64 << 10
_OPENING_BRACKETS = b"[{"
_OTHER_BYTES = bytes(set(range(256)) - set(b"[]{}"))


def read_json(data: bytes, max_values: int) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError if the text is not JSON, and TooLargeError
    if it has too many values or levels."""
    check_json(data, max_values)
    # Decoded first, since `json` also accepts bytes in UTF-16, in which the brackets were not counted.
    return json.loads(data.decode("utf-8-sig", "surrogatepass"))


def check_json(data: bytes, max_values: int, max_depth: int = MAX_DEPTH) -> None:
    """Raise TooLargeError if a JSON text has too many values or levels. A text that is not JSON may pass."""
    # Without escapes, each quotation mark begins or ends a string, so every other part is outside of strings.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    limit_error = TooLargeError(f"it has more than {max_values:,} values")
    if unescaped.count(b'"') > 4 * max_values + 4:  # two strings for each value: its key and itself
        raise limit_error
    structure = b"".join(unescaped.split(b'"')[::2])
    ends = structure.count(b"]") + structure.count(b"}")
    if max(ends, structure.count(b",") + structure.count(b"[") + structure.count(b"{")) > max_values:
        raise limit_error
    depth = 0
    for bracket in structure.translate(None, _OTHER_BYTES):
        depth += 1 if bracket in _OPENING_BRACKETS else -1
        if depth > max_depth:
            raise TooLargeError(f"it is nested more than {max_depth} deep")


def json_file_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES, max_values: int = MAX_FILE_VALUES) -> bytes:
    """Return the bytes of a JSON file after checking them with `check_json`. Raises OSError, also for a pipe
    or a device, and TooLargeError if there are too many bytes, values or levels."""
    if path.is_dir():
        raise OSError(errno.EISDIR, "not an ordinary file", str(path))
    with open_ordinary(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLargeError(f"it has more than {max_bytes:,} bytes")
    check_json(data, max_values)
    return data


def read_json_file(path: Path, max_bytes: int = MAX_FILE_BYTES, max_values: int = MAX_FILE_VALUES) -> Any:
    """Return the value of a JSON file. Raises ValueError if the file is not JSON in UTF-8, and the errors of
    `json_file_bytes`."""
    return json.loads(json_file_bytes(path, max_bytes, max_values).decode("utf-8-sig"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ValueError if the file contains another value, and the errors
    of `read_json_file`."""
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_json_line(line: bytes | str, max_values: int = MAX_LINE_VALUES) -> Any:
    """Return the value of a line of JSON.

    The values of a short line are not counted, because it cannot contain many and files have many such lines.
    Raises ValueError if the line is not JSON, RecursionError if a short line is nested too deeply for Python,
    and TooLargeError if a long one has too many values or levels.
    """
    if len(line) > _SHORT_LINE:
        check_json(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line, max_values)
    return json.loads(line if isinstance(line, str) else line.decode("utf-8-sig", "surrogatepass"))


def limited_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file with their newlines. Raises TooLargeError, with the line number, for a line
    of more than `max_bytes`."""
    for number, line in enumerate(iter(partial(file.readline, max_bytes + 1), b""), 1):
        if len(line) > max_bytes:
            raise TooLargeError(f"line {number} has more than {max_bytes:,} bytes")
        yield line
