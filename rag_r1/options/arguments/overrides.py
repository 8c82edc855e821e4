"""Hydra overrides among the arguments of a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from pydantic_settings import CliPositionalArg


def is_override(word: str) -> bool:
    """Return whether a word has the form `key=value`, or `~key`, which deletes a key."""
    return "=" in word or (word.startswith("~") and len(word) > 1)


def _checked_override(word: str) -> str:
    """Validate a word as an override, and return it unchanged. Raises ValueError if it is not one."""
    if not is_override(word):
        hint = ": repeat the flag for each file" if os.path.exists(word) else ""
        if os.path.isdir(word):
            hint = ": give a folder with its flag"
        raise ValueError(f"{word!r} is not key=value or ~key{hint}")
    return word


#: Hydra overrides, which may stand between the flags. CheckedOverrides refuses words of another form.
Overrides = CliPositionalArg[list[str]]
CheckedOverrides = CliPositionalArg[list[Annotated[str, AfterValidator(_checked_override)]]]


def hydra_quoted(path: Path | str) -> str:
    """Return a path as the value of a Hydra override, in quotes that Hydra removes."""
    return "'" + str(path).replace("'", "\\'") + "'"
