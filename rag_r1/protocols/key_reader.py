"""Reads the keys of a protocol file, strictly.

A KeyReader takes typed keys out of one mapping of the file. A key that is missing, has a value of another
type or one that is not allowed is an error when it is taken. Keys that are left when `finish` is called are
unknown, and errors, too. So a misspelt key never passes for a default.
"""

from __future__ import annotations

from typing import Any

#: The types of values, as an author of YAML calls them.
_TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a mapping"}


class ProtocolError(ValueError):
    """The protocol does not exist, or its file is not valid; the message names the file and the key."""


class KeyReader:
    """The keys of a mapping. `source` is the file and `prefix` the path of the mapping in it (`prompt.`), for
    errors. Every method raises ProtocolError, naming both."""

    def __init__(self, data: dict, source: str, prefix: str = ""):
        self.data, self.source, self.prefix = dict(data), source, prefix

    def take(
        self, key: str, kind: type, default: Any = None, one_of: tuple = (), contains: tuple = ()
    ) -> Any:
        """The value of a key, or `default` if it is missing or null; a key without a default must be there.
        It must be of the type `kind`, one of `one_of`, and contain one of the texts in `contains`."""
        value = self.data.pop(key, None)
        value = default if value is None else value
        name = f"{self.source}: {self.prefix}{key}"
        if value is None:
            raise ProtocolError(f"{name} is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ProtocolError(f"{name} must be {_TYPE_NAMES[kind]}, not {value!r}")
        if one_of and value not in one_of:
            raise ProtocolError(f"{name} must be one of {', '.join(one_of)}, not {value!r}")
        if contains and not any(part in value for part in contains):
            raise ProtocolError(f"{name} must contain {' or '.join(contains)}")
        return value

    def take_tag(self, key: str) -> tuple[str, str]:
        """The opening and the closing string of a tag."""
        tag = self.take(key, list)
        if len(tag) != 2 or not all(isinstance(part, str) and part.strip() for part in tag):
            raise ProtocolError(f"{self.source}: {self.prefix}{key} must be [opening, closing], not {tag!r}")
        return tag[0], tag[1]

    def take_subset(self, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """A list of some of the words in `allowed`; all of them if the key is missing."""
        words = self.take(key, list, default=list(allowed))
        if not words or not all(word in allowed for word in words):
            raise ProtocolError(
                f"{self.source}: {self.prefix}{key} must list some of {', '.join(allowed)}, not {words!r}"
            )
        return tuple(words)

    def finish(self) -> None:
        """Raises ProtocolError if a key was not taken: it is unknown."""
        if self.data:
            raise ProtocolError(f"{self.source}: unknown key {self.prefix}{next(iter(self.data))}")
