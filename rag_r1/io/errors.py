"""The errors about untrusted input that all packages share."""

from __future__ import annotations

#: The command that converts a text whose encoding is not known to UTF-8.
ICONV = "`iconv -f LATIN1 -t UTF-8 FILE > NEW` (for LATIN1, name its encoding)"


class DataError(ValueError):
    """A file, row or answer that cannot be used; the message says which one, why, and what to do."""


class TooLargeError(ValueError):
    """A text or body exceeds the limit of bytes, values or nesting; the message says which limit."""
