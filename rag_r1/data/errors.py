"""The error of the data: of files, rows and annotations of questions."""

from __future__ import annotations


class DataError(ValueError):
    """A file or a row that cannot be used; the message names it, the reason and the remedy."""
