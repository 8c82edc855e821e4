"""A cache of converted encoders on disk, so that each is converted once.

A conversion is a folder of files with a `manifest.json` of their hashes. It is written beside its place and
renamed, so of two processes that convert at once the first one wins. Before it is used its files are compared
with their hashes; one that is damaged is made again.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from retrieval_server.errors import UserError
from retrieval_server.folder.atomic import write_json
from retrieval_server.folder.manifest import MANIFEST, FileEntry, describe_files
from retrieval_server.json_limits import json_file_bytes

log = logging.getLogger(__name__)


class _ConversionManifest(BaseModel):
    """`manifest.json` of a conversion: the hashes of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[str, FileEntry]


def cached_conversion(folder: Path, convert: Callable[[Path], None]) -> Path:
    """Returns `folder`, into which `convert` has written its files now or in an earlier process.

    `convert` gets an empty folder, which then takes that name. Raises UserError if the folder cannot be
    written. What `convert` raises is passed on, and nothing is kept.
    """
    try:
        if _is_complete(folder):
            return folder
        log.warning("converting the encoder, once; it is kept in %s", folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = _sibling_folder(folder)
        try:
            convert(work)
            work.chmod(0o755)  # mkdtemp keeps it from other users
            _publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be kept ({error}). Name another --encoder-cache.") from error
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether the folder holds a conversion whose files have their hashes; warns of a damaged one."""
    if not folder.exists():
        return False
    try:
        manifest = _ConversionManifest.model_validate_json(json_file_bytes(folder / MANIFEST))
        if manifest.files == describe_files(folder):
            return True
    except (FileNotFoundError, ValueError):
        pass
    log.warning("%s: a converted encoder that is damaged; it is made again", folder)
    return False


def _publish(work: Path, folder: Path) -> None:
    """Give a finished conversion its name, unless another process was faster."""
    manifest = _ConversionManifest(files=describe_files(work))
    write_json(work / MANIFEST, manifest.model_dump(mode="json"))
    try:
        os.rename(work, folder)  # fails where there is a folder that is not empty
        return
    except OSError:
        if _is_complete(folder):
            return
    # Another process may put a good one there at any moment, so nothing is removed under this name: what is
    # there goes aside first, and this one, which is as good, takes its place.
    aside = _sibling_folder(folder)
    try:
        with suppress(FileNotFoundError):  # the other process has put it aside
            os.rename(folder, aside)
        try:
            os.rename(work, folder)
        except OSError:
            if not _is_complete(folder):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sibling_folder(folder: Path) -> Path:
    """Make an empty folder beside `folder`."""
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
