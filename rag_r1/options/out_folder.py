"""Checks that the folder of a command's `--out` can be written to, before any work is done.

A file without a name is made in the folder or, if it does not exist yet, in the nearest folder above it.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from rag_r1.io.atomic_files import reason_of
from rag_r1.options.settings_file import owner_of

#: The file of an index that has its passages: by it, an index of the retrieval server is recognised.
INDEX_FILE = "passages.arrow"


def check_out(folder: Path, command: str | None = None, flag: str = "--out") -> None:
    """Raises ValueError, which names `flag`, unless the folder can be made and written to and, with
    `command`, is neither an index nor the folder of a run of another command."""
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not parent.is_dir():
        kind = "is a file" if parent.exists() else "is a link to nothing"
        fault = kind if parent == folder else f"cannot be made, because {parent} {kind}"
        raise ValueError(f"{flag} {folder} {fault}: give a folder")
    try:
        with TemporaryFile(dir=parent):  # rights do not say enough: root has them in /proc, too
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
    """Raises ValueError, which names `flag`, unless the file can be written."""
    if file.is_dir():
        raise ValueError(f"{flag} {file} is a folder: give the name of a file")
    check_out(file.parent, flag=flag)
