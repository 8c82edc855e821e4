"""Reads a JSON array element by element, in bounded memory.

Python's own decoder reads a value at a given position of a text; here the text is a window of the file, which
is moved on from element to element, and made larger as long as an element does not end in it; the values of
such an element are counted before it is decoded again. The values are those of `json.load`, lone surrogates
and NaN included. (ijson would change the former and refuse the latter; and it keeps a path for every level of
nesting, so that 200 KB of brackets take all memory.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from rag_r1.io.bounded_json import check_json

#: Characters that are read at a time.
CHUNK = 1 << 20
#: Most characters of an element.
LONGEST = 1 << 26
#: Most values of an element that is longer than the first window.
MAX_VALUES = 500_000
#: Most characters of white space in a row.
MAX_SPACE = 1 << 20
#: An error this close to the end of the window may be due to the end.
_TAIL = 16
_SPACE = " \t\n\r"


def elements(text: TextIO, begin: int = 1, alone: bool = True) -> Iterator[Any]:
    """The elements of the array whose opening bracket ends at the character `begin` of the text.

    `alone`: nothing but the array may be in the text. Raises ValueError, with the reason and the last
    element that can be read, after all of these, and RecursionError for one that is nested too deeply.
    """
    window = _TextWindow(text, begin)
    number = 0
    try:
        if window.next_character() == "]":
            window.position += 1
        else:
            while True:
                value = window.value()
                number += 1
                yield value
                sign = window.next_character()
                window.position += 1
                if sign == "]":
                    break
                if sign != ",":
                    raise ValueError(f"expecting a comma or the end, not {sign!r}" if sign else "it ends")
        if alone and window.next_character():
            raise ValueError("there is more text after its end")
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"{reason} {f'after element {number}' if number else 'at its beginning'}") from error


class _TextWindow:
    """A part of the text, and the position in it up to which it has been read."""

    def __init__(self, text: TextIO, position: int):
        self.text, self.position = text, position
        self.buffer = text.read(CHUNK)
        self.decode = json.JSONDecoder().raw_decode

    def next_character(self) -> str:
        """The next character that is not white space, without reading it; empty at the end of the text.
        Raises ValueError for white space without end: gzip packs gigabytes of it into a megabyte."""
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

    def value(self) -> Any:
        """Read the next value. Raises ValueError if there is none, or if it is too large."""
        self.next_character()
        while True:
            try:
                value, end = self.decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                # A text that is not ended is reported where it begins.
                is_cut = error.pos >= len(self.buffer) - _TAIL or error.msg.startswith("Unterminated string")
                if not is_cut:
                    raise
                # All of the window belongs to this element, which is long: it is counted before that.
                check_json(self.buffer[self.position :].encode("utf-8", "surrogatepass"), MAX_VALUES)
                if not self._fill():
                    raise
                continue
            if end >= len(self.buffer) - _TAIL and self._fill():
                continue  # a number may go on: `1` of `1e5`
            self.position = end
            return value

    def _fill(self) -> bool:
        """Drop what has been read, and read as many characters again as are left, at least CHUNK. Returns
        False, and changes nothing, at the end of the text."""
        remaining = len(self.buffer) - self.position
        if remaining > LONGEST:
            raise ValueError(f"an element of more than {LONGEST:,} characters")
        if added := self.text.read(max(CHUNK, remaining)):
            self.buffer, self.position = self.buffer[self.position :] + added, 0
        return bool(added)
