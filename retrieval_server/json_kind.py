"""Names JSON values in error messages."""

from __future__ import annotations


def json_kind(value: object) -> str:
    """Return a number, truth value or null as it was sent, and the kind of any other value in words.

    Strings are not repeated because they may be long or private.
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    names = {str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value)) or f"{value!r:.20}"
