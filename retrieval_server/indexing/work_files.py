"""The work files of an interrupted build, each with a record of its origin.

`progress.json` says of each such file from which corpus, encoder and settings it comes. A build keeps a
file only if it would make the same, and removes it otherwise.
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
#: Encoded vectors of an index that does not keep them.
VECTORS = "vectors.f32"
#: The half-built FAISS index of a build with a preset.
PARTIAL_INDEX = "faiss.index.unfinished"
#: All that an interrupted build of any kind leaves; the rows are a part of the index if it rescores.
KEPT_FILES = (VECTORS, ROWS, PARTIAL_INDEX, PROGRESS)


def remove_except(work: Path, used: Collection[str]) -> None:
    """Remove the work files of an interrupted build, all but those that are `used` and PROGRESS."""
    for name in KEPT_FILES:
        if name not in used and name != PROGRESS:
            (work / name).unlink(missing_ok=True)


def keep_if_unchanged(work: Path, name: str, origin: Mapping[str, object]) -> None:
    """Keep the file `name` of the folder only if its recorded origin is `origin`, and record that."""
    path = work / PROGRESS
    try:
        progress = read_json_file(path)
        recorded = progress if isinstance(progress, dict) else {}
    except (OSError, ValueError, RecursionError):
        recorded = {}
    # What is not set counts as what is not there: a setting that is new does not discard older builds' work.
    earlier = _without_none(recorded.get(name))
    current = _without_none(origin)
    if earlier != current and (work / name).exists():
        earlier_values = earlier if isinstance(earlier, dict) else {}
        changed = ", ".join(key for key in current if earlier_values.get(key) != current[key])
        log.warning("%s: of another %s than before: it is removed, and made again", work / name, changed)
        (work / name).unlink()
    write_json(path, {**recorded, name: origin})


def _without_none(value: Any) -> Any:
    """The value without the entries that are None, at any depth."""
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
