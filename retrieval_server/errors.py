"""The exceptions of the package, and helpers for error messages.

A command prints the message of a `UserError`, which ends with the remedy, without a traceback and exits with
status 2. `check_all` runs the checks that are possible before the work, so that one error lists everything
that a user has to repair. The other exceptions concern a single request, row or value and are caught in the
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

_FREE_SPACE = "make room on that disk, or choose another folder"
_CHECK_RIGHTS = "check the rights of the folder, or choose another one"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: _FREE_SPACE,
    errno.EROFS: _CHECK_RIGHTS,
    errno.EACCES: _CHECK_RIGHTS,
    errno.EPERM: _CHECK_RIGHTS,
    errno.ENAMETOOLONG: "give a shorter name",
}
#: If fewer bytes than this are free, an error without a number is taken for a full disk.
_FULL_DISK_BYTES = 1 << 20

#: The remedy for a folder that is not a usable index.
REBUILD = "Build the index again."


class UserError(Exception):
    """An error that a user can repair. The message says how.

    For example, a corpus, an index, an encoder, a recording or a setting cannot be used, a folder cannot be
    written, or a package is missing. `flags` are flags without which the error may not occur: if the value of
    one is wrong, a check sees its default instead, and `command_line.parse` leaves such an error out.
    """

    def __init__(self, message: object, *flags: str):
        super().__init__(message)
        self.flags = flags


class UserErrors(UserError):
    """Several errors that a user can repair."""

    def __init__(self, errors: Sequence[UserError]):
        super().__init__(listed(list(map(str, errors))))
        self.errors = list(errors)


def single_errors(error: UserError) -> list[UserError]:
    """Return the errors of a UserErrors, and any other error alone."""
    return error.errors if isinstance(error, UserErrors) else [error]


def listed(messages: Sequence[str]) -> str:
    """Return a single message unchanged, and several messages as a list below their number."""
    if len(messages) == 1:
        return messages[0]
    return "\n".join([f"{len(messages)} problems:", *(f"  - {message}" for message in messages)])


def check_all(*checks: Callable[[], Any]) -> list[Any]:
    """Run all of these checks and return their results.

    Raises the UserError of a single failed check, or UserErrors with those of several, each message once.
    """
    results: list[Any] = []
    failures: list[UserError] = []
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        errors = itertools.chain(*map(single_errors, failures))
        raise UserErrors(list({str(error): error for error in errors}.values()))
    return results


def reason_of(error: BaseException) -> str:
    """Return the reason in words for a user, for an error from reading a file or a value in it."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return getattr(error, "strerror", None) or str(error)


def refuse_special_file(path: Path) -> None:
    """Raise OSError for a pipe, a device or a folder: a pipe may never end, and cannot be read twice."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no ordinary file", str(path))


class BadRowError(ValueError):
    """One row of a corpus cannot be used. The message says why."""


class JsonLimitError(ValueError):
    """A JSON text has more values than it may have."""


class ValueTooLargeError(ValueError):
    """A value of a vector is finite, but too large for the type of the rows."""


class OverloadedError(Exception):
    """The engine refused a request. `reason` is a label of the metrics; `retry_after` is in whole seconds."""

    def __init__(self, reason: str, message: str, retry_after: int):
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class SearchFailedError(Exception):
    """A source cannot answer a query, for a reason that the response has to name.

    `status` is the HTTP status of the response, `error` its fixed word, and `retry_after` is in whole
    seconds. Clients and logs get the `reason`, so it must not contain keys or other credentials.
    """

    def __init__(self, status: int, error: str, reason: str, retry_after: int | None = None):
        super().__init__(reason)
        self.status, self.error, self.reason, self.retry_after = status, error, reason, retry_after


class OutsideRootError(Exception):
    """`/reload` may not open a folder. The message says which folders it may open."""


class RequestError(Exception):
    """A request is answered with this status, a fixed word for programs and a sentence for people."""

    def __init__(self, status: int, error: str, reason: str, headers: dict[str, str] | None = None):
        self.status, self.error, self.reason, self.headers = status, error, reason, headers


class ClientDisconnectedError(Exception):
    """The client closed its connection, so no response can be sent."""


@contextmanager
def disk_errors(folder: Path, needed: Callable[[], int] | None = None) -> Iterator[None]:
    """Convert errors of a full or protected disk, of rights or of a long name in the block to UserError.

    The message names the file, or `folder` if the file is unknown. For a full disk it also names the free
    bytes, and the bytes that are `needed()`. An error without a number counts as a full disk if less than
    1 MiB is free there. All other errors are passed on.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = getattr(error, "errno", None)
        # Errors of NumPy and FAISS have no number.
        if number is None and _free_bytes(folder) < _FULL_DISK_BYTES:
            number = errno.ENOSPC
        if number not in _REMEDIES:
            raise
        path = getattr(error, "filename", None) or folder
        room = ""
        if needed is not None and number == errno.ENOSPC:
            room = f" (about {size_text(needed())} are needed, {size_text(_free_bytes(folder))} are free)"
        raise UserError(
            f"cannot use {path}: {os.strerror(number)}{room}; {_REMEDIES[number]}, and run the same command "
            "again"
        ) from error


def _free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    return shutil.disk_usage(existing).free


def size_text(size: float) -> str:
    """Return a size in bytes with its unit, such as `12 kB` or `3.4 GB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
