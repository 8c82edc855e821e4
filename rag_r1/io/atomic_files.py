"""Writes files atomically, and reports disk errors with the file's name.

`atomic_file` gives the name of a part beside the file. When its block ends, the part takes the file's name,
so whenever this process is killed there is the old file or the new one. If the block fails, the part is
removed and the old file is left. An operating system that has no room says so without a name; `atomic_file`
adds the file's, as `name_in_errors` does for files that grow, and `error_text` makes a sentence with the
remedy of it, which commands print. `write_text`, `write_lines` and `write_json` write text files so.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
    errno.ENAMETOOLONG: "give a shorter name",
}


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """The part to write in the block, a file or a folder; see the top of the module. Raises OSError with the
    name of the file."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        move_into_place(part, path)
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        with name_in_errors(path, part):
            raise error


def move_into_place(part: Path, path: Path) -> None:
    """Give a file or a folder another name, under which it replaces a file. For work that goes on with its
    part after an error, and for files that are set aside; everything else uses `atomic_file`."""
    os.replace(part, path)


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
    problem = f"cannot use {error.filename}" if error.filename is not None else "cannot write"
    return f"{problem}: {os.strerror(error.errno)}; {_REMEDIES[error.errno]}, and run the same command again"


def reason_of(error: BaseException) -> str:
    """An error in a message that names the file itself: the system's words without number and name."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text, at byte {error.start}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def write_lines(
    path: Path,
    lines: Iterable[str],
    *,
    private: bool = False,
    errors: str | None = None,
    durable: bool = False,
) -> int:
    """Write a text file atomically, from pieces that need not fit in memory; returns their number. A piece
    brings its own newline.

    `private`: for the owner only, as all of a run; what a policy writes can have lone surrogates, and those
    are then kept. `errors`: what becomes of them, as in `open`; unless given they are an error if the file is
    not `private`. `durable`: the text is on the disk before the file has its name. Raises OSError with the
    name of the file.
    """
    count = 0
    with (
        atomic_file(path) as part,
        open(
            part,
            "w",
            encoding="utf-8",
            errors=errors or ("surrogatepass" if private else "strict"),
            newline="\n",
            opener=for_the_owner if private else None,
        ) as file,
    ):
        for line in lines:
            file.write(line)
            count += 1
        if durable:
            file.flush()
            os.fsync(file.fileno())
    return count


def write_text(path: Path, text: str, *, private: bool = False, **how: Any) -> None:
    """Write a text as `write_lines` does, but lone surrogates become escapes if it is not `private`."""
    write_lines(path, [text], private=private, **({} if private else {"errors": "backslashreplace"}) | how)


def write_json(path: Path, value: Any, *, ensure_ascii: bool = True, **how: Any) -> None:
    """Write an indented JSON document. `ensure_ascii`: as in json.dumps; `how`: as in `write_lines`."""
    write_lines(path, [json.dumps(value, indent=2, ensure_ascii=ensure_ascii), "\n"], **how)


def write_json_lines(path: Path, values: Iterable[Any], *, ensure_ascii: bool = False, **how: Any) -> int:
    """Write JSON values, one a line, and return their number; otherwise as `write_json`."""
    return write_lines(path, (json.dumps(value, ensure_ascii=ensure_ascii) + "\n" for value in values), **how)


def for_the_owner(path: str, flags: int) -> int:
    """An opener, as `open` takes it, of files that only their owner can read: questions and documents may be
    confidential on a shared machine."""
    return os.open(path, flags, 0o600)
