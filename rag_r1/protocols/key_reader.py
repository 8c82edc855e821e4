"""Reads the keys of a protocol file strictly.

A `KeyReader` takes typed keys out of one mapping of the file. It is an error to take a key that is missing,
or whose value has another type or is not allowed. Keys that are left when `finish` is called are unknown,
which is an error, too. So a misspelt key is never silently replaced by a default. `raise_faults` names all
errors of a file at once.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

#: The types of values in the words of an author of YAML.
_TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a mapping"}


class ProtocolError(ValueError):
    """Raised for a protocol that does not exist or whose file is invalid; the message names file and key."""


class KeyReader:
    """Reads one mapping of a file. `source` names the file and `prefix` the place of the mapping in it (such
    as `prompt.`).

    Faults are collected, so that `raise_faults` can name all at once. After a fault the methods return some
    value of the right type, so that the other keys can be read, too.
    """

    def __init__(self, data: dict, source: str, prefix: str = "", faults: list[str] | None = None):
        self.data, self.source, self.prefix = dict(data), source, prefix
        #: Messages without the name of the file, shared by the readers of a file.
        self.faults = [] if faults is None else faults
        #: The keys that were asked for, in order.
        self._known_keys: list[str] = []

    def section(self, key: str) -> KeyReader:
        """Take a mapping; returns its reader. If the mapping is missing or wrong, faults of its keys are not
        reported."""
        n_faults = len(self.faults)
        data = self.take(key, dict)
        faults = self.faults if len(self.faults) == n_faults else []
        return KeyReader(data, self.source, f"{self.prefix}{key}.", faults)

    def take(
        self, key: str, kind: type, default: Any = None, one_of: tuple = (), contains: tuple = ()
    ) -> Any:
        """Take a key; returns its value, or `default` if it is missing or null. Without a default it is
        required.

        The value must have the type `kind`, be among `one_of` and contain one of the texts in `contains`, if
        these are given.
        """
        self._known_keys.append(key)
        value = self.data.pop(key, None)
        value = default if value is None else value
        if value is None:
            fault = "is missing"
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            fault = f"must be {_TYPE_NAMES[kind]}, not {value!r}"
        elif one_of and value not in one_of:
            fault = f"must be one of {', '.join(one_of)}, not {value!r}"
        elif contains and not any(part in value for part in contains):
            fault = f"must contain {' or '.join(contains)}"
        else:
            return value
        self.add_fault(key, fault)
        return one_of[0] if one_of else kind()

    def take_tag(self, key: str) -> tuple[str, str]:
        """Take a tag; returns its opening and its closing string."""
        n_faults = len(self.faults)
        tag = self.take(key, list)
        if len(tag) == 2 and all(isinstance(part, str) and part.strip() for part in tag):
            return tag[0], tag[1]
        if len(self.faults) == n_faults:
            self.add_fault(key, f"must be [opening, closing], not {tag!r}")
        return "", ""

    def take_subset(self, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Take a list of some of the texts in `allowed`; returns all of them if the key is missing."""
        n_faults = len(self.faults)
        chosen = self.take(key, list, default=list(allowed))
        if chosen and all(text in allowed for text in chosen):
            return tuple(chosen)
        if len(self.faults) == n_faults:
            self.add_fault(key, f"must list some of {', '.join(allowed)}, not {chosen!r}")
        return allowed

    def add_fault(self, key: str, fault: str) -> None:
        """Add a fault of a key."""
        self.faults.append(f"{self.prefix}{key} {fault}")

    def finish(self) -> None:
        """Add a fault for each key that was not taken, and so is unknown. It names the most similar known key
        or, if none is similar, all known keys."""
        for key in self.data:
            similar = get_close_matches(str(key), self._known_keys, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"use one of {', '.join(self._known_keys)}"
            self.faults.append(f"unknown key {self.prefix}{key} ({hint})")

    def raise_faults(self) -> None:
        """Raise ProtocolError, with the name of the file and all faults, if there are any."""
        if self.faults:
            remedy = "correct the keys; `extends: rag_r1_mq` takes those that are missing from that protocol"
            raise ProtocolError(f"{self.source}: {'; '.join(self.faults)}: {remedy}")
