"""Builds an index beside its final place, and publishes it there.

All work is done in `OUT.building`. At the end of the block of `work_folder`, when the manifest has been
written, that folder is renamed to `OUT`: so `OUT` is a finished index, or does not exist.

An index that is replaced is first renamed to `OUT.replaced`, and removed when the new one has its name. If
the second rename fails, the first one is undone. A process that is killed between the two leaves no `OUT`:
the next build puts the old index back (`check_target`), and a server that is to read it names the command
(`manifest.read_manifest`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tqdm import tqdm

from retrieval_server.errors import UserError, disk_errors
from retrieval_server.folder.locks import exclusive_lock
from retrieval_server.folder.manifest import MANIFEST, replaced_folder

log = logging.getLogger(__name__)
_COPY_BLOCK_BYTES = 16 * 2**20


def check_target(out: Path, *, overwrite: bool) -> None:
    """Raise UserError if `out` must not be written: it exists without `overwrite`, is something else than
    an index, or its parent cannot be written to.

    An index that a killed build left as `OUT.replaced` is renamed back first.
    """
    _put_back(out)
    if out.is_symlink() and not out.exists():
        raise UserError(f"{out} is a link to nothing. Remove it, or choose another --out.")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists. Choose another --out, or replace it with --overwrite.")
    if out.exists() and not (out / MANIFEST).is_file():
        raise UserError(f"{out} is not an index, so --overwrite does not touch it. Choose another --out.")
    check_parent(out)


def check_parent(out: Path) -> None:
    """Raise UserError if the folder `out` cannot be made: the nearest parent that exists is a file, or
    cannot be written to."""
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
    """`OUT.building`, which is published as `out` at the end of the block, in place of an index there.

    It is locked: a second build of the same target at the same time is refused. What a killed build left is
    removed, except for the files named in `resumable`. If the block fails, `out` is as before, and the
    folder is kept if it has one of these files that is not JSON: the JSON ones describe the others, and alone
    are of no use. `bytes_needed(work)` is for the whole build; the UserError of a full disk names it.
    """
    work = out.with_name(out.name + ".building")
    busy = f"{work}: another build of this index is running. Wait for it, or end it."
    check_parent(out)
    try:
        with disk_errors(out, partial(bytes_needed, work) if bytes_needed else None):
            work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # of a file system on which no folder can be made
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


def link_or_copy(source: Path, target: Path, *, progress: bool = False) -> None:
    """Hard-link a file that never changes, or copy it block by block where the file system cannot link.

    Raises OSError; FileExistsError if there is a `target`, which may be a link to the source itself.
    """
    with suppress(OSError):
        os.link(source, target)
        return
    size = source.stat().st_size
    with (
        source.open("rb") as reader,
        target.open("xb") as writer,
        tqdm(total=size, desc="copying", unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        while block := reader.read(_COPY_BLOCK_BYTES):
            writer.write(block)
            bar.update(len(block))


def _publish(work: Path, out: Path) -> None:
    """Rename the finished folder to `out`. Raises OSError; an old index is then where it was."""
    if not out.exists():
        work.rename(out)
        return
    replaced = replaced_folder(out)
    if replaced.exists():  # of a build that was killed when the new index had its name
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
    """Rename `OUT.replaced` to `out` if a build was killed between the renames of `_publish`. Raises
    UserError if one is between them now: it holds the lock of the folder that it replaces."""
    replaced = replaced_folder(out)
    if out.exists() or not (replaced / MANIFEST).is_file():
        return
    with suppress(FileNotFoundError), disk_errors(out), exclusive_lock(replaced, _is_being_replaced(out)):
        if not out.exists():
            replaced.rename(out)
            log.warning("%s: a build that was to replace this index was killed; it is back in its place", out)


def _is_being_replaced(out: Path) -> str:
    """The sentence for an index whose folder another build has locked."""
    return f"{out}: another build replaces this index now. Wait for it, and run the same command again."


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
