"""Checks the folder of a command's `--out` before its work, so that no work is lost for want of a place.

The folder, or else the nearest folder above it, is looked at, and a file without a name is made in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from rag_r1.io.atomic_files import reason_of
from rag_r1.options.settings_file import owner_of

#: Of an index of the retrieval server, the file with its passages.
INDEX_FILE = "passages.arrow"


def check_out(folder: Path, command: str | None = None, flag: str = "--out") -> None:
    """Raises ValueError unless the folder can be made and written to and, with `command`, is neither an index
    nor the folder of a run of another command."""
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not parent.is_dir():
        kind = "is a file" if parent.exists() else "is a link to nothing"
        is_folder = kind if parent == folder else f"cannot be made, because {parent} {kind}"
        raise ValueError(f"{flag} {folder} {is_folder}: give a folder")
    try:
        with TemporaryFile(dir=parent):  # rights alone do not tell: root has them in /proc, too
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


def check_out_file(file: Path, flag: str = "--out") -> None:
    """Raises ValueError unless the file can be written."""
    if file.is_dir():
        raise ValueError(f"{flag} {file} is a folder: give the name of a file")
    check_out(file.parent, flag=flag)
