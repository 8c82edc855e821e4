"""Makes foreign text safe to print on a terminal."""

from __future__ import annotations

import sys
import unicodedata

from rag_r1.io.atomic_files import error_text

#: Control and formatting characters (escape sequences, changes of direction), and what has no meaning of its
#: own.
_HIDDEN = ("Cc", "Cf", "Co", "Cs")


def terminal_text(text: str, max_chars: int = 200) -> str:
    """A text from outside for a terminal: on one line, without control and formatting characters."""
    plain = _plain(" ".join(text[: 4 * max_chars].split()))
    return plain if len(plain) <= max_chars else plain[: max_chars - 3] + "..."


def terminal_lines(text: str, max_chars: int = 2000) -> str:
    """The same for a message of several lines of ours, such as a list of files: the lines and their spaces
    stay. `max_chars`: of a line."""
    lines = (_plain(line.expandtabs(4)) for line in text.split("\n"))
    return "\n".join(line if len(line) <= max_chars else line[: max_chars - 3] + "..." for line in lines)


def print_error(error: BaseException | str) -> None:
    """Print `error: ...` to stderr, as `terminal_lines`; one of the disk with its file and the remedy."""
    message = error if isinstance(error, str) else error_text(error)
    print(f"error: {terminal_lines(message)}", file=sys.stderr)


def has_control_characters(text: str) -> bool:
    """Has it characters, other than line breaks, that a terminal would obey instead of showing?"""
    return any(
        unicodedata.category(character) in (*_HIDDEN, "Zl", "Zp") for character in text if character != "\n"
    )


def _plain(line: str) -> str:
    hidden = (*_HIDDEN, "Zl", "Zp")
    return "".join("\ufffd" if unicodedata.category(character) in hidden else character for character in line)
