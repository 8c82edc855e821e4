"""Publishes a finished work folder as an index, in one step.

All work is done in ``OUT.building`` beside the target; the manifest is written last and the folder renamed
then, so that ``OUT`` is either a finished index or does not exist.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tqdm import tqdm

from retrieval_server.errors import UserError, disk_errors
from retrieval_server.folder.locks import exclusive_lock
from retrieval_server.folder.manifest import MANIFEST

_COPIED_AT_ONCE = 16 * 2**20  # bytes


def refuse_target(out: Path, *, overwrite: bool) -> None:
    """Raise UserError if ``out`` must not be written: it exists, or it is not an index."""
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists. Choose another --out, or replace it with --overwrite.")
    if out.exists() and not (out / MANIFEST).is_file():
        raise UserError(f"{out} is not an index, so --overwrite does not touch it. Choose another --out.")
    refuse_place(out)


def refuse_place(out: Path) -> None:
    """Raise UserError if no folder can be made there."""
    place = next(path for path in out.absolute().parents if path.exists())
    if not place.is_dir():
        raise UserError(f"{out} cannot be made: {place} is a file. Choose another --out.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"{out} cannot be made: {place} cannot be written to. Choose another --out.")


@contextmanager
def work_folder(
    out: Path, keep: Sequence[str] = (), needed: Callable[[Path], int] | None = None
) -> Iterator[Path]:
    """``OUT.building``, locked: a second build of the same target at the same time is refused.

    What a killed build left there is removed, except for the files named in ``keep``, and so is all of it if
    the block fails before it has written one of these. ``needed(work)`` is the number of bytes that the
    whole build takes, which the UserError of a full disk names.
    """
    work = out.with_name(out.name + ".building")
    busy = f"{work}: another build of this index is running. Wait for it, or end it."
    refuse_place(out)
    try:
        with disk_errors(out, partial(needed, work) if needed else None):
            work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # of a file system on which no folder can be made
        raise UserError(f"{work} cannot be made ({error.strerror}). Choose another --out.") from error
    with exclusive_lock(work, busy):
        for left in work.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name not in keep:
                left.unlink()
        if left_there := [name for name in keep if (work / name).exists()]:
            print(f"{work}: an interrupted build has left {', '.join(left_there)}; what fits is used")
        try:
            with disk_errors(out, partial(needed, work) if needed else None):
                yield work
        except BaseException:
            if not any((work / name).exists() for name in keep if not name.endswith(".json")):
                shutil.rmtree(work, ignore_errors=True)
            raise


def link_or_copy(source: Path, target: Path, *, progress: bool = False) -> None:
    """Hard-link a file that never changes, or copy it block by block where the file system cannot link."""
    try:
        os.link(source, target)
        return
    except OSError:
        pass
    size = source.stat().st_size
    with (
        source.open("rb") as read,
        target.open("wb") as written,
        tqdm(total=size, desc="copying", unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        while block := read.read(_COPIED_AT_ONCE):
            written.write(block)
            bar.update(len(block))


def publish(work: Path, out: Path) -> None:
    """Give the finished folder its name. An old index is moved aside first, so no half index is ever seen."""
    aside = out.with_name(out.name + ".replaced")
    if out.exists():
        shutil.rmtree(aside, ignore_errors=True)
        out.rename(aside)
    work.rename(out)
    shutil.rmtree(aside, ignore_errors=True)
