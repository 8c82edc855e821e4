"""Reads the shards of an index, which are in one folder: `shard-0-of-3`, `shard-1-of-3`, ...

Each shard is an index folder, whose manifest says which rows of which index it contains. So a set with a
missing shard, or with a shard of another index, is refused when it is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import MANIFEST, Manifest, ShardSection, read_manifest, require_equal


class IndexFolder(NamedTuple):
    """An index, or a shard of one, and its manifest."""

    path: Path
    manifest: Manifest


class _Shard(NamedTuple):
    """A shard, and the section of its manifest that says which rows it contains."""

    folder: IndexFolder
    section: ShardSection


def shard_folder(out: Path, number: int, count: int) -> Path:
    """Return the folder of a shard in `out`. `number` counts from 0, and `count` is the number of shards."""
    return out / f"shard-{number}-of-{count}"


def read_shards(folder: Path) -> list[IndexFolder]:
    """Return the shards in `folder` in row order, or the folder itself if it is a whole index.

    Raises UserError if a shard is missing or belongs to another index.
    """
    # Unlike those of Path, these functions raise no error for a folder that cannot be read.
    has_shards = os.path.isdir(folder) and not os.path.isfile(folder / MANIFEST)
    paths = sorted(folder.glob("shard-*-of-*")) if has_shards else []
    if not paths:  # a whole index, or no index, which `read_manifest` refuses
        return [IndexFolder(folder, read_manifest(folder))]
    shards: list[_Shard] = []
    for path in paths:
        manifest = read_manifest(path)
        if manifest.shard is None:
            raise UserError(f"{path} is a whole index, not a shard: move it out of {folder}.")
        shards.append(_Shard(IndexFolder(path, manifest), manifest.shard))
    shards.sort(key=lambda shard: shard.section.number)
    _check_set(folder, shards)
    return [shard.folder for shard in shards]


def _check_set(folder: Path, shards: Sequence[_Shard]) -> None:
    """Raise UserError unless these are all shards of one index, in row order.

    A manifest may name any number of shards, so that is compared before anything is counted up to it.
    """
    remedy = "Split the index again with `rag-r1 index split`."
    expected = shards[0].section
    numbers = [section.number for _, section in shards]
    require_equal(f"{folder}: number of shards, here {numbers}", expected.of, len(numbers), remedy)
    require_equal(f"{folder}: shards", list(range(len(numbers))), numbers, remedy)
    row = 0
    for (path, manifest), section in shards:
        require_equal(f"{path}: whole corpus", expected.whole_sha256, section.whole_sha256, remedy)
        require_equal(f"{path}: first row", row, section.first_row, remedy)
        row += manifest.count
    require_equal(f"{folder}: passages", expected.whole_count, row, remedy)
