"""Makes untrusted text safe to print on a terminal."""

from __future__ import annotations

import sys
import unicodedata

from rag_r1.io.errors import error_text

#: Unicode categories of characters that are replaced: control and formatting characters (escape sequences,
#: changes of direction), private and surrogate characters, and line and paragraph separators.
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def terminal_text(text: str, max_chars: int = 200) -> str:
    """Return an untrusted text on one line of at most `max_chars` characters, without control and formatting
    characters. A text that is cut ends with `...`."""
    # Cut first, since the text may be very long; white space in it shrinks afterwards.
    plain = _plain(" ".join(text[: 4 * max_chars].split()))
    is_whole = len(plain) <= max_chars and len(text) <= 4 * max_chars
    return plain if is_whole else plain[: max_chars - 3] + "..."


def terminal_lines(text: str, max_chars: int = 2000) -> str:
    """Return a message without control and formatting characters. Its lines and their spaces are kept, and
    each line is cut to `max_chars` characters."""
    lines = (_plain(line.expandtabs(4)) for line in text.split("\n"))
    return "\n".join(line if len(line) <= max_chars else line[: max_chars - 3] + "..." for line in lines)


def print_error(error: BaseException | str) -> None:
    """Print `error: ...` to stderr, made safe by `terminal_lines`. For a disk error the message includes the
    file and the remedy."""
    message = error if isinstance(error, str) else error_text(error)
    print(f"error: {terminal_lines(message)}", file=sys.stderr)


def has_control_characters(text: str) -> bool:
    """Return whether a text contains characters, other than line breaks, that a terminal would interpret
    instead of showing them."""
    return any(unicodedata.category(character) in _HIDDEN for character in text if character != "\n")


def _plain(line: str) -> str:
    """Return the line with a replacement character for each hidden character."""
    return "".join("\ufffd" if unicodedata.category(char) in _HIDDEN else char for char in line)
