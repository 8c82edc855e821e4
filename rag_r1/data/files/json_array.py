"""Reads a JSON array element by element, in bounded memory.

Python's decoder can decode a value at a given position of a text. Here the text is a window of the file,
which moves from element to element and is enlarged while an element does not end in it. Before such a long
element is decoded again, its values are counted, to refuse one that would take too much memory.

The values are those of `json.load`, including lone surrogates and NaN. (ijson would alter the former and
refuse the latter, and it stores a path for every level of nesting, so 200 KB of brackets exhaust the memory.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from rag_r1.io.bounded_json import check_json

#: Number of characters that are read at a time.
CHUNK = 1 << 20
#: Most characters of an element.
LONGEST = 1 << 26
#: Most values of an element that does not fit into the first window.
MAX_VALUES = 500_000
#: Most consecutive characters of white space.
MAX_SPACE = 1 << 20
#: An error within this many characters of the window's end may only mean that the element continues after it.
_TAIL = 16
_SPACE = " \t\n\r"


def elements(text: TextIO, begin: int = 1, ends_text: bool = True) -> Iterator[Any]:
    """Yield the elements of the array whose content, after the opening bracket, begins at character `begin`.

    With `ends_text`, only white space may follow the array. At a syntax error, raises ValueError after all
    earlier elements have been yielded; the message has the reason and the number of the last element. Raises
    RecursionError for an element that is nested too deeply.
    """
    window = _TextWindow(text, begin)
    number = 0
    try:
        char = window.next_character()
        while char != "]":
            value = window.read_value()
            number += 1
            yield value
            char = window.next_character()
            if char == ",":
                window.position += 1
            elif char != "]":
                raise ValueError(f"expecting a comma or the end, not {char!r}" if char else "it ends")
        window.position += 1
        if ends_text and window.next_character():
            raise ValueError("there is more text after its end")
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        reason = reason.removesuffix(" starting at")  # a position follows in Python's message
        location = f"after element {number}" if number else "at its beginning"
        raise ValueError(f"{reason} {location}") from error


class _TextWindow:
    """A part of the text that is in memory (`buffer`), and the position in it up to which it has been
    read."""

    def __init__(self, text: TextIO, position: int):
        self.text, self.position = text, position
        self.buffer = text.read(CHUNK)
        self.decode = json.JSONDecoder().raw_decode

    def next_character(self) -> str:
        """Skip white space and return the next character without reading it; empty at the end of the text.
        Raises ValueError for too much white space, of which gzip packs gigabytes into a megabyte."""
        spaces = 0
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in _SPACE:
                self.position += 1
                spaces += 1
            if spaces > MAX_SPACE:
                raise ValueError(f"more than {MAX_SPACE:,} characters of white space in a row")
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self._fill():
                return ""

    def read_value(self) -> Any:
        """Read the next value. Raises ValueError if there is none, or if it is too large."""
        self.next_character()
        while True:
            try:
                value, end = self.decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                # The decoder reports an unterminated string at the position where the string begins.
                is_cut = error.pos >= len(self.buffer) - _TAIL or error.msg.startswith("Unterminated string")
                if not is_cut:
                    raise
                # The rest of the window belongs to this long element: count its values before reading more.
                check_json(self.buffer[self.position :].encode("utf-8", "surrogatepass"), MAX_VALUES)
                if not self._fill():
                    raise
                continue
            if end >= len(self.buffer) - _TAIL and self._fill():
                continue  # a number may continue after the window: `1` of `1e5`
            self.position = end
            return value

    def _fill(self) -> bool:
        """Drop the part of the window that has been read, and double the rest, at least by CHUNK. Returns
        False, and changes nothing, at the end of the text. Raises ValueError if the rest is too long."""
        remaining = len(self.buffer) - self.position
        if remaining > LONGEST:
            raise ValueError(f"an element of more than {LONGEST:,} characters")
        if added := self.text.read(max(CHUNK, remaining)):
            self.buffer, self.position = self.buffer[self.position :] + added, 0
        return bool(added)
