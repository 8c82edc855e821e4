"""Checks that the folder of a command's `--out` can be written to, before any work is done.

For that, a nameless temporary file is created in the folder or, if the folder does not exist yet, in its
nearest existing parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile

from rag_r1.io.errors import reason_of
from rag_r1.options.settings_file import owner_of

#: The file with the passages of an index, by which the folder of an index is recognised (PASSAGES in
#: retrieval_server/folder/manifest.py, which shares no code with this package).
INDEX_FILE = "passages.arrow"


def check_out(
    folder: Path, command: str | None = None, flag: str = "--out", *, writes: Iterable[str] = ()
) -> None:
    """Raise ValueError, which names `flag`, unless the folder can be created and written to. With `command`,
    also raises it if the folder is an index, contains a run of another command, or has one of the files
    `writes`, which `command` would replace, from no run."""
    if str(folder).startswith("~") and not os.path.lexists(folder.parts[0]):  # a shell leaves unknown users
        raise ValueError(f"{flag} {folder}: {folder.parts[0]} is no home folder: write the whole path")
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not parent.is_dir():
        kind = "is a file" if parent.exists() else "is a link to nothing"
        fault = kind if parent == folder else f"cannot be made, because {parent} {kind}"
        raise ValueError(f"{flag} {folder} {fault}: give a folder")
    try:
        with TemporaryFile(dir=parent):  # permissions are not enough: root has them even in /proc
            pass
    except OSError as error:
        raise ValueError(
            f"{flag} {folder}: {parent} cannot be written to ({reason_of(error)}): check its rights, or "
            "choose another folder"
        ) from error
    if command is not None and (folder / INDEX_FILE).is_file():
        raise ValueError(f"{flag} {folder} is an index: choose another folder")
    if command is not None and (owner := owner_of(folder)) not in (None, command):
        raise ValueError(f"{flag} {folder} is the folder of a run of `{owner}`: choose another folder")
    if command is not None and owner is None and (foreign := _existing(folder, writes)):
        raise ValueError(f"{flag} {folder} has {foreign} of no run of `{command}`: choose another folder")


def _existing(folder: Path, names: Iterable[str]) -> str:
    """Return those of the names that a folder has, for a message."""
    return ", ".join(name for name in names if (folder / name).exists())


def refuse_replaced(
    inputs: Iterable[str | Path | None], out: Path, writes: Iterable[str], flag: str = "--out"
) -> None:
    """Raise ValueError, which names `flag`, for an input that is one of the files `writes` in `out`, also by
    another path or a link, since it would be replaced. An input of None is none."""
    written = {os.path.realpath(out / name) for name in writes}
    if read := [str(path) for path in inputs if path is not None and os.path.realpath(path) in written]:
        fault = f"would replace {', '.join(dict.fromkeys(read))}, which is also a file that is read"
        raise ValueError(f"{flag} {out} {fault}: give another")


def check_out_file(
    file: Path,
    flag: str = "--out",
    *,
    inputs: Iterable[Path | None] = (),
    begin: bytes = b"",
    owner: str = "",
) -> None:
    """Raise ValueError, which names `flag`, unless the file can be written. It must not be one of `inputs`,
    the files that are read, which it would replace. If it exists and is not empty, it must begin with
    `begin`, as the files of the command `owner` do."""
    if file.is_dir():
        raise ValueError(f"{flag} {file} is a folder: give the name of a file")
    refuse_replaced(inputs, file.parent, [file.name], flag)
    if file.is_file() and file.stat().st_size:
        with file.open("rb") as existing:
            if existing.read(len(begin)) != begin:
                raise ValueError(f"{flag} {file} exists and was not written by `{owner}`: choose another")
    check_out(file.parent, flag=flag)
