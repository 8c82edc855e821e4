"""Parses foreign JSON within limits of values and nesting.

A body within its limit of bytes can hold millions of empty lists: 64 MB of them take gigabytes and many
seconds, in which an event loop does nothing else. So a text is looked at as bytes first: its values and its
nesting are counted, in time linear in its bytes. The same holds for the JSON files of a folder that somebody
else has made (a model, an index, a run), and for lines of JSON: a line of 64 MiB can hold as many lists.
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

#: Most levels of lists and objects, unless a caller says otherwise.
MAX_DEPTH = 64
#: Most bytes and values of a file that is read whole, unless a caller says otherwise: a manifest, settings, a
#: card.
MAX_FILE_BYTES, MAX_FILE_VALUES = 16 << 20, 500_000
#: Most bytes and values of a line. As empty lists, so many values take about 150 MB.
MAX_LINE_BYTES, MAX_LINE_VALUES = 64 << 20, 2_000_000
#: Lines of at most so many bytes (of a text: characters) are parsed without counting their values.
_SHORT_LINE = 64 << 10
_OPENING_BRACKETS = b"[{"
_OTHER_BYTES = bytes(set(range(256)) - set(b"[]{}"))


def read_json(data: bytes, max_values: int) -> Any:
    """Returns the value of a JSON text in UTF-8. Raises ValueError for a text that is not JSON, and
    TooLargeError for too many values or levels."""
    check_json(data, max_values)
    # As text: of bytes, `json` would also read UTF-16, in which the bytes of brackets mean other things.
    return json.loads(data.decode("utf-8-sig", "surrogatepass"))


def check_json(data: bytes, max_values: int, max_depth: int = MAX_DEPTH) -> None:
    """Raises TooLargeError for a JSON text of too many values or levels. A text that is not JSON may pass."""
    # Without escapes, a quotation mark begins or ends a text; every other part is outside of texts.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    limit_error = TooLargeError(f"it has more than {max_values:,} values")
    if unescaped.count(b'"') > 4 * max_values + 4:  # a text for each value, and one for its key
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
    """Returns the bytes of a JSON file, whose values have been counted. Raises OSError, also for a pipe or a
    device, which might never end, and TooLargeError for too many bytes, values or levels."""
    if path.is_dir():
        raise OSError(errno.EISDIR, "not an ordinary file", str(path))
    with open_ordinary(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLargeError(f"it has more than {max_bytes:,} bytes")
    check_json(data, max_values)
    return data


def read_json_file(path: Path, max_bytes: int = MAX_FILE_BYTES, max_values: int = MAX_FILE_VALUES) -> Any:
    """Returns the value of a JSON file in UTF-8. Raises what `json_file_bytes` raises, and ValueError for a
    file that is not JSON in UTF-8."""
    return json.loads(json_file_bytes(path, max_bytes, max_values).decode("utf-8-sig"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises what `read_json_file` raises, and ValueError for another
    value."""
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_json_line(line: bytes | str, max_values: int = MAX_LINE_VALUES) -> Any:
    """Returns the value of a line of JSON. Raises ValueError for a line that is not JSON, RecursionError for
    one that is nested too deep, and TooLargeError for too many values. The values of a short line are not
    counted: it cannot hold much, and files have many."""
    if len(line) > _SHORT_LINE:
        check_json(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line, max_values)
    return json.loads(line if isinstance(line, str) else line.decode("utf-8-sig", "surrogatepass"))


def limited_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yields the lines of a file with their newlines. Raises TooLargeError, with the line's number, for one
    of more than `max_bytes`."""
    for number, line in enumerate(iter(partial(file.readline, max_bytes + 1), b""), 1):
        if len(line) > max_bytes:
            raise TooLargeError(f"line {number} has more than {max_bytes:,} bytes")
        yield line
