"""The exceptions of the package.

A command prints the message of a ``UserError``, which ends with the remedy, without a traceback
and exits with status 2. What can be checked before the work is checked by ``check_all``, so that one error
lists all that a user has to repair. The others end a request, or one row of a corpus, and are caught in the
package. Any other exception is a bug.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOM = "make room on that disk, or choose another folder"
_RIGHTS = "check the rights of the folder, or choose another one"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
}
#: With fewer free bytes than this, an error without a number is one of the disk.
_NO_ROOM = 1 << 20

#: The remedy for a folder that is no usable index.
REBUILD = "Build the index again."


class UserError(Exception):
    """An error that a user can repair; the message tells how.

    A corpus, index, encoder, recording or setting cannot be used, a folder cannot be written, or a package is
    missing.
    """


class UserErrors(UserError):
    """Several errors, each of which a user can repair: `messages`."""

    def __init__(self, messages: Sequence[str]):
        super().__init__(listed(messages))
        self.messages = list(messages)


def listed(messages: Sequence[str]) -> str:
    """One message, or all of them with their number."""
    if len(messages) == 1:
        return messages[0]
    return "\n".join([f"{len(messages)} problems:", *(f"  - {message}" for message in messages)])


def check_all(*checks: Callable[[], Any]) -> list[Any]:
    """The results of these checks, all of which are made. Raises the UserError of one, or UserErrors."""
    results, failures = [], []
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        messages = [error.messages if isinstance(error, UserErrors) else [str(error)] for error in failures]
        raise UserErrors(list(dict.fromkeys(itertools.chain(*messages))))
    return results


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read, in words for a user."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return getattr(error, "strerror", None) or str(error)


class BadRowError(ValueError):
    """What is wrong with one row of a corpus, in words."""


class ValueTooLargeError(ValueError):
    """A value of a vector is finite, and more than the type of the rows can hold."""


class OverloadedError(Exception):
    """The request was refused; ``retry_after`` is in whole seconds, ``reason`` a metrics label."""

    def __init__(self, reason: str, message: str, retry_after: int):
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class SearchFailedError(Exception):
    """A source cannot answer a query now, for a reason that the response has to name.

    ``status`` is the HTTP status of the answer, ``error`` its fixed word, ``retry_after`` in whole seconds.
    The text goes to clients and into logs: no key, no credentials.
    """

    def __init__(self, status: int, error: str, reason: str, retry_after: int | None = None):
        super().__init__(reason)
        self.status, self.error, self.reason, self.retry_after = status, error, reason, retry_after


class OutsideRootError(Exception):
    """A folder that ``/reload`` may not open; the message says which it may."""


class RequestError(Exception):
    """A request that is answered with this status, a fixed word to branch on and a sentence for people."""

    def __init__(self, status: int, error: str, reason: str, headers: dict[str, str] | None = None):
        self.status, self.error, self.reason, self.headers = status, error, reason, headers


class ClientDisconnectedError(Exception):
    """The client closed its connection, so no response can be sent."""


@contextmanager
def disk_errors(folder: Path, needed: Callable[[], int] | None = None) -> Iterator[None]:
    """Raises UserError, which names the file or else the folder, for what the block cannot write there; and
    of a full disk the bytes that are ``needed``, and those that it has."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = getattr(error, "errno", None)
        if number is None and _is_full(folder):  # NumPy's and FAISS's errors have no number
            number = errno.ENOSPC
        if number not in _REMEDIES:
            raise
        named, remedy = getattr(error, "filename", None) or folder, _REMEDIES[number]
        room = ""
        if needed is not None and number == errno.ENOSPC:
            room = f" (about {size_text(needed())} are needed, {size_text(_free_bytes(folder))} are free)"
        raise UserError(
            f"cannot use {named}: {os.strerror(number)}{room}; {remedy}, and run the same command again"
        ) from error


def _is_full(folder: Path) -> bool:
    return _free_bytes(folder) < _NO_ROOM


def _free_bytes(folder: Path) -> int:
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    return shutil.disk_usage(existing).free


def size_text(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
