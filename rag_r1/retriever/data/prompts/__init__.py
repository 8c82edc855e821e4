"""Loads the judge's instructions, each of which is a text file of this folder."""

from __future__ import annotations

from importlib.resources import files


def instructions(name: str) -> str:
    """Return the text of `NAME.txt`; `name` is `relevance` or `sub_answers`."""
    return (files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
