"""The errors about untrusted input that all packages share."""

from __future__ import annotations


class DataError(ValueError):
    """A file, row or answer that cannot be used; the message says which one, why, and what to do."""


class TooLargeError(ValueError):
    """A text or body exceeds the limit of bytes, values or nesting; the message says which limit."""
