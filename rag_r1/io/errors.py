"""The errors about untrusted input that all packages share, and the texts in which errors are reported."""

from __future__ import annotations

import errno
import os
from typing import TypeGuard

#: The command that converts a text whose encoding is not known to UTF-8.
ICONV = "`iconv -f LATIN1 -t UTF-8 FILE > NEW` (for LATIN1, name its encoding)"

_MAKE_ROOM = "make room on that disk, or choose another folder"
_CHECK_RIGHTS = "check the rights of the file and of its folder, or choose another folder"
#: What a user can do about an error, by its number.
_REMEDIES = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: _MAKE_ROOM,
    errno.EROFS: _CHECK_RIGHTS,
    errno.EACCES: _CHECK_RIGHTS,
    errno.EPERM: _CHECK_RIGHTS,
    errno.ENAMETOOLONG: "give a shorter name",
}


class DataError(ValueError):
    """A file, row or answer that cannot be used; the message says which one, why, and what to do."""


class TooLargeError(ValueError):
    """A text or body exceeds the limit of bytes, values or nesting; the message says which limit."""


def is_disk_error(error: BaseException) -> TypeGuard[OSError]:
    """Return whether this is an operating system error about missing space, missing permissions or a name
    that is too long."""
    return isinstance(error, OSError) and error.errno in _REMEDIES


def error_text(error: BaseException) -> str:
    """Return the message that a command prints for an error. For a disk error it names the file and the
    remedy."""
    if not is_disk_error(error):
        return str(error)
    problem = f"cannot use {error.filename}" if error.filename is not None else "cannot write"
    return f"{problem}: {os.strerror(error.errno)}; {_REMEDIES[error.errno]}, and run the same command again"


def reason_of(error: BaseException) -> str:
    """Return the reason of an error on one line, for messages that name the file themselves. It lacks the
    number and the file name of an operating system error."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text, at byte {error.start}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def first_line_of(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank, or the name of its type if there is
    none. It is for libraries whose messages have many lines."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
