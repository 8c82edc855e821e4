"""Reads the secrets of tools from environment variables.

A configuration is logged, so it only names the variable that has a key or a token.
"""

from __future__ import annotations

import os
from typing import Annotated

from rag_r1.options.types import Constraint, Text

#: The type of an option that names an environment variable.
Variable = Annotated[Text | None, Constraint("the name of an environment variable, or null")]


def read_secret(variable: str | None) -> str | None:
    """Return the value of an environment variable, which must not be logged; None if it is empty or not set.
    Raises ValueError for a value that a header cannot have, since HTTP clients would show it in their
    messages."""
    value = os.environ.get(variable, "").strip() if variable else ""
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"${variable} has characters that a key cannot have: set it to the key alone")
    return value or None


def bearer_header(variable: str | None) -> dict[str, str]:
    """Return the header with the bearer token from an environment variable; empty without a token. Raises
    what `read_secret` raises."""
    token = read_secret(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}
