"""Writes files atomically, and raises disk errors with the file's name.

`atomic_file` yields the name of a temporary part beside the file, which its block writes. At the end of the
block the part is renamed to the file. So whenever the process is killed, either the old file or the new one
exists. If the block fails, the part is removed and the old file stays. `write_lines`, `write_text`,
`write_json` and `write_json_lines` write text files in this way. The part is `NAME.part`, so only one process
at a time may write a file; a run's folder is locked (rag_r1/runs/lock.py).

The operating system's error about a full disk does not name the file. `atomic_file` adds the name, and so
does `name_in_errors` for other files. errors.py has the message that commands print for such an error.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rag_r1.io.errors import is_disk_error


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a part, a file or folder that the block must write and that is then renamed to
    `path`. A file replaces an earlier one, and a folder an empty one. What a killed process has left as the
    part is removed before, so that its rights, or the target of a link, do not become those of the file.
    Raises OSError with the name of the file, also if `path` is a folder with content."""
    part = path.with_name(f"{path.name}.part")
    _remove(part)
    try:
        yield part
        move_into_place(part, path)
    except BaseException as error:
        _remove(part)
        with name_in_errors(path, part):
            raise error


def _remove(part: Path) -> None:
    """Remove a file, link or folder, as far as that is possible."""
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        with suppress(OSError):
            part.unlink()


def move_into_place(part: Path, path: Path) -> None:
    """Rename the file or folder `part` to `path`, and replace a file or empty folder of that name. Raises
    OSError.

    This is for work that continues with its part after an error, and for files that are set aside. All other
    code uses `atomic_file`.
    """
    os.replace(part, path)


@contextmanager
def name_in_errors(path: Path, part: Path | None = None) -> Iterator[None]:
    """Raise the disk errors (`is_disk_error`) of the block with the name of the file. By themselves, errors
    of writing have no name, and those of opening may have the name of `part`, which is written first."""
    try:
        yield
    except OSError as error:
        if is_disk_error(error) and error.filename in (None, part and str(part)):
            assert error.errno is not None  # checked by is_disk_error
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def write_lines(
    path: Path,
    lines: Iterable[str],
    *,
    private: bool = False,
    errors: str | None = None,
    durable: bool = False,
) -> int:
    """Write the concatenation of `lines` atomically into a text file, and return their number. Lines must
    include their newlines, and need not fit into memory together.

    - `private`: whether only the owner may read the file, as for all files of a run. Lone surrogates, which a
      policy can emit, are then kept.
    - `errors`: how lone surrogates are handled, as in `open`. By default they raise UnicodeEncodeError unless
      the file is `private`.
    - `durable`: whether the text must be on the disk before the file gets its name

    Raises OSError with the name of the file.
    """
    count = 0
    errors = errors or ("surrogatepass" if private else "strict")
    opener = for_the_owner if private else None
    with (
        atomic_file(path) as part,
        open(part, "w", encoding="utf-8", errors=errors, newline="\n", opener=opener) as file,
    ):
        for line in lines:
            file.write(line)
            count += 1
        if durable:
            file.flush()
            os.fsync(file.fileno())
    return count


def write_text(
    path: Path, text: str, *, private: bool = False, errors: str | None = None, durable: bool = False
) -> None:
    """Write a text as `write_lines` does. If `errors` is not given, lone surrogates are written as escapes
    (`\\ud800`), unless the file is `private`."""
    errors = errors or (None if private else "backslashreplace")
    write_lines(path, [text], private=private, errors=errors, durable=durable)


def write_json(
    path: Path, value: Any, *, ensure_ascii: bool = True, private: bool = False, durable: bool = False
) -> None:
    """Write an indented JSON document. `ensure_ascii` has the meaning it has in `json.dumps`; if it is False,
    lone surrogates raise UnicodeEncodeError unless the file is `private`. `private` and `durable` are those
    of `write_lines`."""
    text = json.dumps(value, indent=2, ensure_ascii=ensure_ascii)
    write_lines(path, [text, "\n"], private=private, durable=durable)


def write_json_lines(
    path: Path,
    values: Iterable[Any],
    *,
    ensure_ascii: bool = False,
    private: bool = False,
    durable: bool = False,
) -> int:
    """Write one JSON value per line, and return their number. The options are those of `write_json`, but
    `ensure_ascii` is False by default, so that the text can be searched."""
    lines = (json.dumps(value, ensure_ascii=ensure_ascii) + "\n" for value in values)
    return write_lines(path, lines, private=private, durable=durable)


def for_the_owner(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as an `opener` for `open`. Questions and documents may be
    confidential on a shared machine."""
    return os.open(path, flags, 0o600)
