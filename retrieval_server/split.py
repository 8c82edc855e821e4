"""An index cut into shards: consecutive runs of its rows, each an index folder of its own.

Searching all shards and merging by score, equal scores in corpus order, gives exactly what the whole index
gives: a passage's score depends on the query and the passage alone. For BM25 that holds because scores are
computed when the whole index is built, and a shard takes its rows' scores with it; for FAISS where vectors
are stored as they are (``Flat``, ``IVF...,Flat``: a shard keeps the cells of the whole). Encodings that are
trained (PQ, SQ8) or graphs (HNSW) would not give the same, and are refused.

A shard's manifest says which part of which index it is, so that a set with a missing or a foreign shard is
refused when it is opened.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval_server.errors import BuildError, IndexFolderError
from retrieval_server.manifest import (
    BM25_FOLDER,
    FAISS_INDEX,
    MANIFEST,
    PASSAGES,
    Manifest,
    ShardSection,
    check_files,
    describe_files,
    read_manifest,
    require_equal,
    write_manifest,
)
from retrieval_server.passages import PassageStore, PassageWriter
from retrieval_server.sources import Retrieved, rounded

_EXACT = re.compile(r"(IVF\d+,)?Flat")
_VECTORS_AT_ONCE = 65536


def shard_folder(out: Path, number: int, of: int) -> Path:
    return out / f"shard-{number}-of-{of}"


def split_index(folder: Path, out: Path, shards: int, *, progress: bool = True) -> None:
    """Cut the index in ``folder`` into ``shards`` index folders below ``out``. Raises BuildError."""
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    if manifest.shard is not None:
        raise BuildError(f"{folder} is a shard itself; split the whole index.")
    if out.exists():
        raise BuildError(f"{out} exists. Choose another --out, or remove it.")
    if not 1 <= shards <= manifest.count:
        raise BuildError(
            f"--shards {shards}: an index of {manifest.count} passages has 1 to {manifest.count}."
        )
    if manifest.dense is not None and not _EXACT.fullmatch(manifest.dense.factory):
        raise BuildError(
            f"{folder}: shards of a {manifest.dense.factory} index would not answer as the whole does; "
            "Flat and IVF...,Flat can be split."
        )
    work = out.with_name(out.name + ".building")
    shutil.rmtree(work, ignore_errors=True)
    borders = [manifest.count * number // shards for number in range(shards + 1)]
    store = PassageStore(folder / PASSAGES)
    for number in tqdm(range(shards), desc="splitting", unit="shard", disable=not progress):
        rows = range(borders[number], borders[number + 1])
        part = shard_folder(work, number, shards)
        part.mkdir(parents=True)
        with PassageWriter(part / PASSAGES) as writer:
            for row in rows:
                writer.add(store[row], row + 1)
        if manifest.dense is not None:
            _split_faiss(folder / FAISS_INDEX, rows, part / FAISS_INDEX)
        else:
            _split_bm25(folder / BM25_FOLDER, rows, part / BM25_FOLDER)
        section = ShardSection(
            number=number,
            of=shards,
            first_row=rows.start,
            whole_count=manifest.count,
            whole_sha256=manifest.corpus.sha256,
        )
        update = {
            "count": len(rows),
            "corpus": manifest.corpus.model_copy(update={"sha256": writer.sha256}),
            "files": describe_files(part),
            "shard": section,
        }
        write_manifest(part, manifest.model_copy(update=update))
    work.rename(out)


def _split_faiss(path: Path, rows: range, out: Path) -> None:
    import faiss

    whole = faiss.read_index(str(path))
    part = faiss.clone_index(whole)
    part.reset()  # the vectors go, what was trained stays
    if hasattr(whole, "make_direct_map"):
        whole.make_direct_map()
    for first in range(rows.start, rows.stop, _VECTORS_AT_ONCE):
        part.add(whole.reconstruct_n(first, min(_VECTORS_AT_ONCE, rows.stop - first)))
    faiss.write_index(part, str(out))


def _split_bm25(folder: Path, rows: range, out: Path) -> None:
    import bm25s

    index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
    documents, borders = index.scores["indices"], index.scores["indptr"]
    mine = (documents >= rows.start) & (documents < rows.stop)
    before = np.concatenate([[0], np.cumsum(mine)])  # how many of mine stand before each place
    index.scores = {
        "data": np.asarray(index.scores["data"][mine]),
        "indices": (documents[mine] - rows.start).astype(documents.dtype),
        "indptr": before[borders].astype(borders.dtype),
        "num_docs": len(rows),
    }
    index.save(out, show_progress=False)


def read_shards(folder: Path) -> list[tuple[Path, Manifest]]:
    """The shards below ``folder`` in row order, or the one index that it is.

    Raises IndexFolderError if they are not all there, or not all of one index.
    """
    if (folder / MANIFEST).is_file() or not folder.is_dir():
        return [(folder, read_manifest(folder))]
    found = [(path, read_manifest(path)) for path in sorted(folder.glob("shard-*-of-*"))]
    if not found:
        return [(folder, read_manifest(folder))]  # which says what is missing
    remedy = "Split the index again with shard_index.py."
    sections = []
    for path, manifest in found:
        if manifest.shard is None:
            raise IndexFolderError(f"{path}: no shard, but an index of its own. {remedy}")
        sections.append((manifest.shard, path, manifest))
    sections.sort(key=lambda item: item[0].number)
    first = sections[0][0]
    numbers = [section.number for section, _, _ in sections]
    require_equal(f"{folder}: shards", list(range(first.of)), numbers, remedy)
    row = 0
    for section, path, manifest in sections:
        require_equal(f"{path}: whole corpus", first.whole_sha256, section.whole_sha256, remedy)
        require_equal(f"{path}: first row", row, section.first_row, remedy)
        row += manifest.count
    require_equal(f"{folder}: passages", first.whole_count, row, remedy)
    return [(path, manifest) for _, path, manifest in sections]


def merge(found: Sequence[Sequence[Retrieved]], topk: int) -> tuple[Retrieved, ...]:
    """The ``topk`` best of one query's hits from every shard: lists best first, with unrounded scores, the
    shards in row order. The sort is stable, so equal scores stay in corpus order.
    """
    every = [hit for hits in found for hit in hits]
    return tuple(rounded(hit) for hit in sorted(every, key=lambda hit: -hit.score)[:topk])
