"""The instructions of the judge, each in a text file of this folder."""

from __future__ import annotations

from importlib.resources import files


def instructions(name: str) -> str:
    """The text of `NAME.txt`: `relevance` or `sub_answers`."""
    return (files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
