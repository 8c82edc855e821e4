"""Caches converted encoders on disk, so that each one is converted only once.

A conversion is a folder of files with a `manifest.json` that contains their hashes. It is written to a
temporary folder beside its final place and then renamed, so that the first of several concurrent conversions
is used. The files are compared with their hashes before each use; a damaged conversion is replaced.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from retrieval_server.errors import UserError
from retrieval_server.folder.atomic import write_json
from retrieval_server.folder.manifest import MANIFEST, FileEntry, Stored, describe_files
from retrieval_server.json_limits import json_file_bytes

log = logging.getLogger(__name__)


class _ConversionManifest(Stored):
    """The `manifest.json` of a conversion, with the sizes and hashes of its files."""

    files: dict[str, FileEntry]


def cached_conversion(folder: Path, convert: Callable[[Path], None]) -> Path:
    """Return `folder`, which contains the files that `convert` writes now, or wrote in an earlier process.

    `convert` is called with an empty folder, which is then renamed to `folder`. If it fails, nothing is kept.
    Raises UserError for an OSError, as when the folder cannot be written, and passes on all other errors.
    """
    try:
        if _is_complete(folder):
            return folder
        log.warning("converting the encoder, once; it is kept in %s", folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = _make_sibling_folder(folder)
        try:
            convert(work)
            work.chmod(0o755)  # mkdtemp creates folders that other users cannot read
            _publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be kept ({error}). Name another --encoder-cache.") from error
    return folder


def _is_complete(folder: Path) -> bool:
    """Return whether the folder is a conversion whose files match their hashes. Warns of a damaged one."""
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
    """Rename a finished conversion to `folder`, unless another process was faster."""
    manifest = _ConversionManifest(files=describe_files(work))
    write_json(work / MANIFEST, manifest.model_dump(mode="json"))
    try:
        os.rename(work, folder)  # fails if the folder exists and is not empty
        return
    except OSError:
        if _is_complete(folder):
            return
    # Another process may publish an intact conversion at any moment, so nothing is removed under the final
    # name. The damaged folder is renamed first, and the new one takes its place. If the renamed one was
    # intact after all, the new one is equivalent.
    aside = _make_sibling_folder(folder)
    try:
        with suppress(FileNotFoundError):  # the other process has already renamed it
            os.rename(folder, aside)
        try:
            os.rename(work, folder)
        except OSError:
            if not _is_complete(folder):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_sibling_folder(folder: Path) -> Path:
    """Create and return an empty folder beside `folder`."""
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
