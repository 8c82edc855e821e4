"""Provides the work folder in which an index is built, and publishes the finished index.

All work is done in `OUT.building`. At the end of the `work_folder` block, when the manifest has been written,
this folder is renamed to `OUT`. So `OUT` either is a finished index or does not exist.

An index that is replaced is first renamed to `OUT.replaced`, and removed when the new one has its name. If
the second rename fails, the first one is undone. If the process is killed between the two, there is no `OUT`.
The next build then restores the old index (`check_target`), and a server that reads it shows the command that
does so (`manifest.read_manifest`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from retrieval_server.errors import UserError, disk_errors
from retrieval_server.folder.locks import exclusive_lock
from retrieval_server.folder.manifest import MANIFEST, replaced_folder

log = logging.getLogger(__name__)


def check_target(out: Path, *, overwrite: bool) -> None:
    """Raise UserError if `out` must not be written.

    This is the case if it has no name, if it exists and `overwrite` is false, if it is a link to nothing or
    not an index, if another build replaces it now, or if its parent is not writable. First an index
    that a killed build left as `OUT.replaced` is renamed to `out`, so that it counts as existing.
    """
    if out.name in ("", ".."):  # the folders beside `out` are named after it
        raise UserError(f"{out} has no name of its own. Choose another --out.")
    _put_back(out)
    if out.is_symlink() and not out.exists():
        raise UserError(f"{out} is a link to nothing. Remove it, or choose another --out.")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists. Choose another --out, or replace it with --overwrite.")
    if out.exists() and not (out / MANIFEST).is_file():
        raise UserError(f"{out} is not an index, so --overwrite does not touch it. Choose another --out.")
    check_parent(out)


def check_parent(out: Path) -> None:
    """Raise UserError if the nearest existing parent of `out` is not a folder or not writable."""
    parent = next(path for path in out.absolute().parents if os.path.lexists(path))
    if not parent.is_dir():
        kind = "a file" if parent.exists() else "a link to nothing"
        raise UserError(f"{out} cannot be made: {parent} is {kind}. Choose another --out.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{out} cannot be made: {parent} cannot be written to. Choose another --out.")


@contextmanager
def work_folder(
    out: Path, resumable: Sequence[str] = (), bytes_needed: Callable[[Path], int] | None = None
) -> Iterator[Path]:
    """Yield the folder `OUT.building`, which replaces `out` at the end of the block.

    The folder is locked, so that a concurrent build of the same target is refused. Files of an interrupted
    build are removed, except for those named in `resumable`. If the block fails, `out` stays as it was, and
    the work folder is kept if it contains a resumable file that is not JSON; the JSON files only describe the
    others. `bytes_needed(work)` is the size of the whole build, for the error message of a full disk. Raises
    UserError.
    """
    work = out.with_name(out.name + ".building")
    busy = f"{work}: another build of this index is running. Wait for it, or end it."
    check_parent(out)
    try:
        with disk_errors(out, partial(bytes_needed, work) if bytes_needed else None):
            work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # the file system does not allow new folders
        raise UserError(f"{work} cannot be made ({error.strerror}). Choose another --out.") from error
    with exclusive_lock(work, busy):
        for entry in work.iterdir():
            if entry.name not in resumable or not entry.is_file():
                _remove(entry)
        if resumed := [name for name in resumable if (work / name).exists()]:
            print(f"{work}: an interrupted build has left {', '.join(resumed)}; what fits is used")
        try:
            with disk_errors(out, partial(bytes_needed, work) if bytes_needed else None):
                yield work
                _publish(work, out)
        except BaseException:
            if not any((work / name).exists() for name in resumable if not name.endswith(".json")):
                shutil.rmtree(work, ignore_errors=True)
            raise


def _publish(work: Path, out: Path) -> None:
    """Rename the finished folder to `out`, and remove an index in its place.

    Raises UserError if `out` is no index, and OSError. What is there is then left in its place.
    """
    if not out.exists():
        work.rename(out)
        return
    check_target(out, overwrite=True)  # a folder that is no index may have been made meanwhile
    replaced = replaced_folder(out)
    if replaced.exists():  # from a build that was killed after it had published its index
        _remove(replaced)
    with exclusive_lock(out, _is_being_replaced(out)):
        try:
            out.rename(replaced)
            work.rename(out)
        except BaseException:
            if not out.exists():
                replaced.rename(out)
            raise
        with suppress(OSError):
            _remove(replaced)


def _put_back(out: Path) -> None:
    """Rename `OUT.replaced` to `out` if a build was killed between the two renames of `_publish`.

    Raises UserError if a build is between them now, which then holds the lock of the replaced folder.
    """
    replaced = replaced_folder(out)
    if out.exists() or not (replaced / MANIFEST).is_file():
        return
    with suppress(FileNotFoundError), disk_errors(out), exclusive_lock(replaced, _is_being_replaced(out)):
        if not out.exists():
            replaced.rename(out)
            log.warning("%s: a build that was to replace this index was killed; it is back in its place", out)


def _is_being_replaced(out: Path) -> str:
    """Return the error message for an index whose folder is locked by another build."""
    return f"{out}: another build replaces this index now. Wait for it, and run the same command again."


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
