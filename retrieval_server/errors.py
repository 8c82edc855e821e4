"""The errors of building or opening an index; every message ends with the remedy.

The scripts print the message without a traceback and exit with status 2. Any other exception is a bug.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOM = "make room on that disk, or choose another folder"
_RIGHTS = "check the rights of the folder, or choose another one"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
}
#: With fewer free bytes than this, an error without a number is one of the disk.
_NO_ROOM = 1 << 20


class RetrievalServerError(Exception):
    """Base of the errors that a user can repair; the message tells how."""


class CorpusError(RetrievalServerError):
    """A corpus file cannot be read: unknown format, malformed row, duplicate id, no passage at all."""


class EncoderError(RetrievalServerError):
    """An encoder cannot be found, or its folder contradicts the settings asked for."""


class BuildError(RetrievalServerError):
    """An index cannot be built as asked: the target exists, another build runs, an unknown factory string."""


class IndexFolderError(RetrievalServerError):
    """A folder is not a finished index, or its parts do not fit each other or the encoder."""


class WebEngineError(RetrievalServerError):
    """A web search engine cannot be used as configured: no key, no address, a reserved parameter."""


class RecordingError(RetrievalServerError):
    """A recording of web answers cannot be read or written, or is not a recording."""


class RayError(RetrievalServerError):
    """Ray Serve is not installed, or an encoder or shard does not start in it."""


class DiskError(RetrievalServerError):
    """A folder cannot be written: no room, or no right."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raises DiskError, which names the file or else the folder, for what the block cannot write there."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = getattr(error, "errno", None)
        if number is None and _is_full(folder):  # NumPy's and FAISS's errors have no number
            number = errno.ENOSPC
        if number not in _REMEDIES:
            raise
        named = getattr(error, "filename", None) or folder
        raise DiskError(
            f"cannot use {named}: {os.strerror(number)}; {_REMEDIES[number]}, and run the same command again"
        ) from error


def _is_full(folder: Path) -> bool:
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    return shutil.disk_usage(there).free < _NO_ROOM
