"""Writes files atomically, and reports disk errors with the file's name.

`atomic_file` gives the name of a part beside the file. When its block ends, the part takes the file's name,
so whenever this process is killed there is the old file or the new one. If the block fails, the part is
removed and the old file is left. An operating system that has no room says so without a name; `atomic_file`
adds the file's, as `name_in_errors` does for files that grow, and `error_text` makes a sentence with the
remedy of it, which commands print.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOM = "make room on that disk, or choose another folder"
_RIGHTS = "check the rights of the file and of its folder, or choose another folder"
#: What a user can do about an error, by its number.
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
}


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """The part to write in the block, a file or a folder; see the top of the module. Raises OSError with the
    name of the file."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        with name_in_errors(path, part):
            raise error


@contextmanager
def name_in_errors(path: Path, part: Path | None = None) -> Iterator[None]:
    """Give what the block cannot write the name of the file: the system's errors in writing have none, and
    those in opening have the part's."""
    try:
        yield
    except OSError as error:
        if is_disk_error(error) and error.filename in (None, str(part)):
            assert error.errno is not None
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def is_disk_error(error: BaseException) -> bool:
    """Is there no room, or no right to write?"""
    return isinstance(error, OSError) and error.errno in _REMEDIES


def error_text(error: BaseException) -> str:
    """An error as a command tells it: one of the disk with the file and the remedy, any other as it is."""
    if not is_disk_error(error):
        return str(error)
    assert isinstance(error, OSError)
    what = f"cannot use {error.filename}" if error.filename is not None else "cannot write"
    return f"{what}: {os.strerror(error.errno)}; {_REMEDIES[error.errno]}, and run the same command again"
