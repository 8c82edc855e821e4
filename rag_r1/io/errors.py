"""The errors of data from elsewhere, for all packages."""

from __future__ import annotations


class DataError(ValueError):
    """A file, a row or an answer that cannot be used; the message says which, why, and what to do."""


class TooLargeError(ValueError):
    """A text or a body has more bytes, values or levels than are read; the message says which."""
