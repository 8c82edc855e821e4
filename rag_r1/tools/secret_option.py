"""Options of tools that name an environment variable, and the secret that it holds."""

from __future__ import annotations

import os
from typing import Annotated

from rag_r1.options.declare import Constraint, Text

#: The type of an option that names an environment variable.
Variable = Annotated[Text | None, Constraint("the name of an environment variable, or null")]


def read_secret(variable: str | None) -> str | None:
    """The value of an environment variable; None if it is empty or not set. It must not be logged. Raises
    ValueError for a value that a header cannot have, which HTTP clients would show in their messages."""
    value = os.environ.get(variable, "").strip() if variable else ""
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"${variable} has characters that a key cannot have: set it to the key alone")
    return value or None


def bearer_header(variable: str | None) -> dict[str, str]:
    """The header with the bearer token in an environment variable; empty without one. Raises as
    `read_secret`."""
    token = read_secret(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}
