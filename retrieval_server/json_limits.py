"""Reads JSON from elsewhere, a server or a folder, only if it has few values.

A few megabytes can hold millions of empty lists, which take hundreds of megabytes and seconds of the event
loop. So a text is looked at as bytes first: its values and its nesting are counted, in time linear in its
bytes.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

MAX_DEPTH = 64  # levels of lists and objects
MAX_FILE_BYTES = 16 << 20  # of a file that is read whole: a manifest, a model's settings
MAX_FILE_VALUES = 500_000  # in such a file, or in a line of a corpus
_UNCOUNTED_LINE = 64 << 10  # characters or bytes of a line whose values are not counted
_OPENING_BRACKETS = b"[{"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(data: bytes, max_values: int) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError for another text, and beyond the limits."""
    _check(data, max_values)
    # As text: of bytes, `json` would also read UTF-16, in which the bytes of brackets mean other things.
    return json.loads(data.decode("utf-8-sig", "surrogatepass"))


def json_file_bytes(path: Path) -> bytes:
    """The bytes of a JSON file whose values have been counted. Raises OSError, also for a pipe or a device,
    which might never end; ValueError for too many bytes, values or levels."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no ordinary file", str(path))
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    _check(data, MAX_FILE_VALUES)
    return data


def read_json_file(path: Path) -> Any:
    """The value of a JSON file in UTF-8. Raises what `json_file_bytes` and `json.loads` raise."""
    return json.loads(json_file_bytes(path).decode("utf-8-sig"))


def read_json_line(line: bytes | str) -> Any:
    """The value of a line of JSON. Raises ValueError, as `json.loads` does, and for a line of too many
    values or levels. A short line is not counted: it cannot hold much, and a corpus has millions."""
    if len(line) > _UNCOUNTED_LINE:
        _check(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line, MAX_FILE_VALUES)
    return json.loads(line if isinstance(line, str) else line.decode("utf-8-sig", "surrogatepass"))


def _check(data: bytes, max_values: int) -> None:
    """Raises ValueError for a JSON text of more values, or of more levels than MAX_DEPTH."""
    # Without escapes, a quotation mark begins or ends a text; every other part is outside of texts.
    marked = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    too_many = ValueError(f"it has more than {max_values:,} values")
    if marked.count(b'"') > 4 * max_values + 4:  # a text for each value, and one for its key
        raise too_many
    outside = b"".join(marked.split(b'"')[::2])
    ends = outside.count(b"]") + outside.count(b"}")
    if max(ends, outside.count(b",") + outside.count(b"[") + outside.count(b"{")) > max_values:
        raise too_many
    depth = 0
    for bracket in outside.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPENING_BRACKETS else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
