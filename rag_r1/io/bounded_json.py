"""Parses foreign JSON within limits of values and nesting.

A body within its limit of bytes can hold millions of empty lists: 64 MB of them take gigabytes and many
seconds, in which an event loop does nothing else. So a text is looked at as bytes first: its values and its
nesting are counted, in time linear in its bytes.
"""

from __future__ import annotations

import json
from typing import Any

#: Most levels of lists and objects, unless a caller says otherwise.
MAX_DEPTH = 64
_OPEN, _NO_BRACKETS = b"[{", bytes(set(range(256)) - set(b"[]{}"))


class JsonLimitError(ValueError):
    """It has too many values or levels; the message says which."""


def read_json(data: bytes, most_values: int) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError for what is none; JsonLimitError for too many
    values or levels."""
    check_json(data, most_values)
    # As text: of bytes, `json` would also read UTF-16, in which the bytes of brackets mean other things.
    return json.loads(data.decode("utf-8-sig", "surrogatepass"))


def check_json(data: bytes, most_values: int, most_depth: int = MAX_DEPTH) -> None:
    """Raises JsonLimitError for a JSON text of too many values or levels. What is no JSON may pass."""
    # Without escapes, a quotation mark begins or ends a text; every other part is outside of texts.
    marked = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    too_many = JsonLimitError(f"it has more than {most_values:,} values")
    if marked.count(b'"') > 4 * most_values + 4:  # a text for each value, and one for its key
        raise too_many
    outside = b"".join(marked.split(b'"')[::2])
    ends = outside.count(b"]") + outside.count(b"}")
    if max(ends, outside.count(b",") + outside.count(b"[") + outside.count(b"{")) > most_values:
        raise too_many
    depth = 0
    for bracket in outside.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPEN else -1
        if depth > most_depth:
            raise JsonLimitError(f"it is nested more than {most_depth} deep")
