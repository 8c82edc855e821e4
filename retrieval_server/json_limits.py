"""Reads JSON from untrusted servers and folders within limits on its values and nesting.

A few megabytes of JSON can contain millions of empty lists, which take hundreds of megabytes and block the
event loop for seconds. So the values and the nesting of a text are counted in its bytes, in linear time,
before it is parsed. The trainer's packages do the same in rag_r1/io/bounded_json.py, since neither side
imports the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retrieval_server.errors import JsonLimitError, refuse_special_file

MAX_DEPTH = 64  # levels of lists and objects
MAX_FILE_BYTES = 16 << 20  # of a file that is read as a whole, such as a manifest
MAX_FILE_VALUES = 500_000  # in such a file, or in a line of a corpus
_UNCOUNTED_LINE = 64 << 10  # up to this length, in characters or bytes, a line is not counted
_OPENING_BRACKETS = b"[{"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(data: bytes, max_values: int) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises JsonLimitError if it has more than `max_values` values, and ValueError if it is malformed or nested
    more than MAX_DEPTH levels deep.
    """
    _check_json(data, max_values)
    # The bytes are decoded here, since `json` would also accept UTF-16, in which they would be counted
    # wrongly.
    return json.loads(data.decode("utf-8-sig", "surrogatepass"))


def json_file_bytes(path: Path) -> bytes:
    """Return the bytes of a JSON file after checking its limits.

    Raises OSError, also for a pipe or a device (`refuse_special_file`), and ValueError for too many bytes,
    values or levels.
    """
    refuse_special_file(path)
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    _check_json(data, MAX_FILE_VALUES)
    return data


def read_json_file(path: Path) -> Any:
    """Return the value of a JSON file in UTF-8.

    Raises OSError or ValueError as `json_file_bytes` does, and ValueError if the file is malformed.
    """
    return json.loads(json_file_bytes(path).decode("utf-8-sig"))


def read_json_line(line: bytes | str) -> Any:
    """Return the value of a line of JSON.

    The values of short lines are not counted: a corpus has millions of them, and none can contain many
    values. Raises ValueError if the line is malformed or exceeds a limit, and RecursionError if a short line
    is nested too deeply for Python's parser.
    """
    if len(line) > _UNCOUNTED_LINE:
        _check_json(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line, MAX_FILE_VALUES)
    return json.loads(line if isinstance(line, str) else line.decode("utf-8-sig", "surrogatepass"))


def _check_json(data: bytes, max_values: int) -> None:
    """Raise JsonLimitError for more than `max_values` values, and ValueError for more than MAX_DEPTH levels.

    A text that is not JSON may pass.
    """
    # Without escapes every quotation mark begins or ends a string, so every second part is outside strings.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    too_many = JsonLimitError(f"it has more than {max_values:,} values")
    if unescaped.count(b'"') > 4 * max_values + 4:  # a string for each value, and one for its key
        raise too_many
    outside = b"".join(unescaped.split(b'"')[::2])
    ends = outside.count(b"]") + outside.count(b"}")
    if max(ends, outside.count(b",") + outside.count(b"[") + outside.count(b"{")) > max_values:
        raise too_many
    depth = 0
    for bracket in outside.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPENING_BRACKETS else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
