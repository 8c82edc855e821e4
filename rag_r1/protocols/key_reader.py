"""Reads the keys of a protocol file strictly.

A `KeyReader` takes typed keys out of one mapping of the file. It is an error to take a key that is missing,
or whose value has another type or is not allowed. Keys that are left when `finish` is called are unknown,
which is an error, too. So a misspelt key is never silently replaced by a default.
"""

from __future__ import annotations

from typing import Any

#: The types of values in the words of an author of YAML.
_TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a mapping"}


class ProtocolError(ValueError):
    """Raised for a protocol that does not exist or whose file is invalid; the message names file and key."""


class KeyReader:
    """Reads one mapping of a file. `source` names the file and `prefix` the place of the mapping in it (such
    as `prompt.`); the ProtocolError that every method may raise names both."""

    def __init__(self, data: dict, source: str, prefix: str = ""):
        self.data, self.source, self.prefix = dict(data), source, prefix

    def take(
        self, key: str, kind: type, default: Any = None, one_of: tuple = (), contains: tuple = ()
    ) -> Any:
        """Take a key; returns its value, or `default` if it is missing or null. Without a default it is
        required.

        The value must have the type `kind`, be among `one_of` and contain one of the texts in `contains`, if
        these are given.
        """
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
        """Take a tag; returns its opening and its closing string."""
        tag = self.take(key, list)
        if len(tag) != 2 or not all(isinstance(part, str) and part.strip() for part in tag):
            raise ProtocolError(f"{self.source}: {self.prefix}{key} must be [opening, closing], not {tag!r}")
        return tag[0], tag[1]

    def take_subset(self, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Take a list of some of the words in `allowed`; returns all of them if the key is missing."""
        words = self.take(key, list, default=list(allowed))
        if not words or not all(word in allowed for word in words):
            raise ProtocolError(
                f"{self.source}: {self.prefix}{key} must list some of {', '.join(allowed)}, not {words!r}"
            )
        return tuple(words)

    def finish(self) -> None:
        """Raise ProtocolError if a key was not taken, and so is unknown."""
        if self.data:
            raise ProtocolError(f"{self.source}: unknown key {self.prefix}{next(iter(self.data))}")
