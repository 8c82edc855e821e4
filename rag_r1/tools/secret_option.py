"""The option with which a tool names the environment variable of its key or token.

A configuration is logged, so it must not contain the secret itself.
"""

from __future__ import annotations

from typing import Annotated

from rag_r1.io.secrets import read_secret
from rag_r1.options.types import Constraint, Text

#: The type of an option that names an environment variable.
Variable = Annotated[Text | None, Constraint("the name of an environment variable, or null")]


def bearer_header(variable: str | None) -> dict[str, str]:
    """Return the header with the bearer token from an environment variable; empty without a token. Raises
    what `read_secret` raises."""
    token = read_secret(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}
