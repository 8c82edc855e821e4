"""The shards of one index, side by side in a folder: ``shard-0-of-3``, ``shard-1-of-3``, ...

Each is an index folder of its own whose manifest says which rows of which index it holds, so that a set with
a missing shard, or with a shard of another index, is refused when it is opened.
"""

from __future__ import annotations

from pathlib import Path

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import MANIFEST, Manifest, read_manifest, require_equal


def shard_folder(out: Path, number: int, count: int) -> Path:
    return out / f"shard-{number}-of-{count}"


def read_shards(folder: Path) -> list[tuple[Path, Manifest]]:
    """The shards in ``folder`` in row order, or the folder itself if it is one index.

    Raises UserError if a shard is missing or belongs to another index.
    """
    if (folder / MANIFEST).is_file() or not folder.is_dir():
        return [(folder, read_manifest(folder))]
    shards = [(path, read_manifest(path)) for path in sorted(folder.glob("shard-*-of-*"))]
    if not shards:
        return [(folder, read_manifest(folder))]  # which says what is missing
    remedy = "Split the index again with `rag-r1 index split`."
    for path, manifest in shards:
        if manifest.shard is None:
            raise UserError(f"{path}: no shard, but an index of its own. {remedy}")
    shards.sort(key=lambda item: item[1].shard.number)
    first = shards[0][1].shard
    numbers = [manifest.shard.number for _, manifest in shards]
    require_equal(f"{folder}: shards", list(range(first.of)), numbers, remedy)
    row = 0
    for path, manifest in shards:
        require_equal(f"{path}: whole corpus", first.whole_sha256, manifest.shard.whole_sha256, remedy)
        require_equal(f"{path}: first row", row, manifest.shard.first_row, remedy)
        row += manifest.count
    require_equal(f"{folder}: passages", first.whole_count, row, remedy)
    return shards
