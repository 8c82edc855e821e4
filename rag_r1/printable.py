"""Texts from outside on a terminal: names of files, titles, words of servers, messages that quote them."""

from __future__ import annotations

import unicodedata


def printable(text: str, longest: int = 200) -> str:
    """A text from outside for a terminal: on one line, without control and formatting characters (escape
    sequences, changes of direction)."""
    shown = "".join(
        "\ufffd" if unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs") else character
        for character in " ".join(text[: 4 * longest].split())
    )
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def printable_lines(text: str, longest: int = 2000) -> str:
    """The same, line by line; for messages of several lines of ours."""
    return "\n".join(
        line[: len(line) - len(line.lstrip(" "))] + printable(line, longest) for line in text.split("\n")
    )
