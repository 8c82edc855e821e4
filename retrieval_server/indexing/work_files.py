"""Decides which work files of an interrupted build can be reused, by a record of their origin.

`progress.json` records the corpus, the encoder and the settings of each work file. A build keeps a file only
if it would produce the same one, and removes it otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from retrieval_server.folder.atomic import write_json
from retrieval_server.folder.manifest import ROWS
from retrieval_server.json_limits import read_json_file

log = logging.getLogger(__name__)
PROGRESS = "progress.json"
#: The encoded vectors of an index that does not keep them.
VECTORS = "vectors.f32"
#: The half-built FAISS index of a build with a preset.
PARTIAL_INDEX = "faiss.index.unfinished"
#: All work files of any kind of build. ROWS is also a part of a finished index with rescoring.
KEPT_FILES = (VECTORS, ROWS, PARTIAL_INDEX, PROGRESS)


def remove_except(work: Path, used: Collection[str]) -> None:
    """Remove the work files of an interrupted build except PROGRESS and those that are `used`."""
    for name in KEPT_FILES:
        if name not in used and name != PROGRESS:
            (work / name).unlink(missing_ok=True)


def keep_if_unchanged(work: Path, name: str, origin: Mapping[str, object]) -> None:
    """Remove the file `name` unless its recorded origin equals `origin`, and record this origin.

    It is to be called before the file is written. `origin` must consist of values that JSON has, without
    tuples. Raises OSError.
    """
    path = work / PROGRESS
    try:
        progress = read_json_file(path)
        recorded = progress if isinstance(progress, dict) else {}
    except (OSError, ValueError):
        recorded = {}
    # A missing setting is treated as None, so that a new setting does not invalidate the files of older
    # versions.
    earlier = _without_none(recorded.get(name))
    current = _without_none(origin)
    if earlier != current and (work / name).exists():
        reason = "of unknown origin"
        if isinstance(earlier, dict):
            changed = [key for key in {**current, **earlier} if earlier.get(key) != current.get(key)]
            reason = f"of another {', '.join(changed)} than before"
        log.warning("%s: %s: it is removed, and made again", work / name, reason)
        (work / name).unlink()
    write_json(path, {**recorded, name: origin})


def _without_none(value: Any) -> Any:
    """Return the value without the entries that are None, in objects at any depth."""
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
