"""Splits an index into shards: index folders with consecutive ranges of its rows.

Searching all shards and merging by score, with equal scores in corpus order, returns exactly the hits of the
whole index, because the score of a passage depends only on the query and the passage. For BM25 this holds
because the scores are computed when the whole index is built, and a shard gets the scores of its rows. For
FAISS it holds if vectors are stored unchanged (`Flat`, and `IVF...,Flat`, whose shards keep the cells of the
whole index). Trained encodings (PQ, SQ8) and graphs (HNSW) would return other hits and are refused.

An index with rescoring (presets `balanced` and `small`) can be split too. Its shards keep the cells and the
rotation of the whole index and get the codes of their rows. Each shard rescores as many candidates as the
whole index would. So together they find everything that the whole index finds, and sometimes a passage that
it has missed.

The manifest of a shard says which rows of which index it contains; `folder/shard_set.py` opens a set of
shards.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval_server.errors import UserError, check_all
from retrieval_server.extras import INDEX, require_packages
from retrieval_server.folder.manifest import (
    BM25_FOLDER,
    FAISS_INDEX,
    PASSAGES,
    ROWS,
    Manifest,
    ShardSection,
    check_files,
    describe_files,
    read_manifest,
    write_manifest,
)
from retrieval_server.folder.passages import PassageStore, PassageWriter
from retrieval_server.folder.publication import check_parent, work_folder
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.folder.shard_set import shard_folder
from retrieval_server.search.vectors.faiss_files import open_index

_EXACT = re.compile(r"(IVF\d+,)?Flat")
_BLOCK_VECTORS = 65536


def split_index(folder: Path, out: Path, shards: int, *, progress: bool = True) -> None:
    """Split the index in `folder` into `shards` index folders in `out`.

    Raises UserError, or UserErrors, if the index cannot be split like this or `out` cannot be written.
    """
    manifest = check_split(folder, out, shards)
    check_files(folder, manifest)
    with work_folder(out) as work:
        _write_shards(folder, manifest, work, shards, progress)


def check_split(folder: Path, out: Path, shards: int) -> Manifest:
    """Return the manifest of the index. Raises UserError, or UserErrors, if it cannot be split like this."""
    manifest, *_ = check_all(
        partial(check_splittable, folder), partial(check_out, out), partial(check_shard_count, folder, shards)
    )
    return manifest


def check_out(out: Path) -> None:
    """Raise UserError if the folder exists or cannot be created."""
    if os.path.lexists(out):  # also a link to nothing, which no folder can replace
        raise UserError(f"{out} exists. Choose another --out, or remove it.")
    check_parent(out)


def check_shard_count(folder: Path | None, shards: int) -> None:
    """Raise UserError for fewer than one shard, and for more than the index in `folder` has passages."""
    count = None
    if folder is not None:
        with suppress(UserError):  # which `check_splittable` reports
            count = read_manifest(folder).count
    if shards < 1 or (count is not None and shards > count):
        most = "the number of passages" if count is None else f"{count}, the number of passages"
        raise UserError(f"--shards {shards}: choose from 1 to {most}.")


def check_splittable(folder: Path) -> Manifest:
    """Return the manifest of an index.

    Raises UserError if indexes of its kind cannot be split, or its files do not have the right sizes.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest, verify=False)
    if manifest.shard is not None:
        raise UserError(f"{folder} is a shard itself; split the whole index.")
    if manifest.backend not in ("dense", "bm25"):
        raise UserError(f"{folder}: a {manifest.backend} index; dense and bm25 indexes can be split.")
    if manifest.backend == "dense":
        require_packages("A dense index", "retrieval", INDEX)
    dense = manifest.dense
    if dense is not None and dense.rescoring is None and not _EXACT.fullmatch(dense.factory):
        raise UserError(f"{folder}: a {dense.factory} index; only Flat, IVF...,Flat, presets can be split.")
    return manifest


def _write_shards(folder: Path, manifest: Manifest, work: Path, shards: int, progress: bool) -> None:
    """Write the index folders of all shards into `work`, one after the other."""
    dense = manifest.dense
    borders = [manifest.count * number // shards for number in range(shards + 1)]
    store = PassageStore(folder / PASSAGES)
    for number in tqdm(range(shards), desc="splitting", unit="shard", disable=not progress):
        rows = range(borders[number], borders[number + 1])
        target = shard_folder(work, number, shards)
        target.mkdir(parents=True)
        with PassageWriter(target / PASSAGES) as writer:
            for row in rows:
                writer.add(store[row], row + 1)
        if dense is not None and dense.rescoring is not None:
            layout = RowLayout(dense.encoder.dimension, dense.rescoring.rows)
            _split_compressed(folder, rows, target, layout)
        elif dense is not None:
            _split_faiss(folder / FAISS_INDEX, rows, target / FAISS_INDEX)
        else:
            _split_bm25(folder / BM25_FOLDER, rows, target / BM25_FOLDER)
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
            "files": describe_files(target),
            "shard": section,
        }
        write_manifest(target, manifest.model_copy(update=update))


def _split_faiss(path: Path, rows: range, out: Path) -> None:
    """Write a FAISS index of these rows, with the cells of the whole index."""
    import faiss

    source = open_index(path)
    shard = faiss.clone_index(source)
    shard.reset()  # removes the vectors and keeps the training
    if hasattr(source, "make_direct_map"):
        source.make_direct_map()
    for first_row in range(rows.start, rows.stop, _BLOCK_VECTORS):
        shard.add(source.reconstruct_n(first_row, min(_BLOCK_VECTORS, rows.stop - first_row)))
    faiss.write_index(shard, str(out))


def _split_compressed(folder: Path, rows: range, target: Path, layout: RowLayout) -> None:
    """Copy these rows, and their codes in the cells of the whole index.

    Encoding the rows again would take as long as the build and could round differently.
    """
    import faiss

    with (folder / ROWS).open("rb") as source, (target / ROWS).open("wb") as stream:
        source.seek(rows.start * layout.row_bytes)
        for first_row in range(rows.start, rows.stop, _BLOCK_VECTORS):
            count = min(_BLOCK_VECTORS, rows.stop - first_row)
            stream.write(source.read(count * layout.row_bytes))
    shard = open_index(folder / FAISS_INDEX)
    shard.reset()  # removes the codes and keeps the training
    source_index = open_index(folder / FAISS_INDEX, mapped=True)
    source_cells = faiss.extract_index_ivf(source_index)
    cells = faiss.extract_index_ivf(shard)
    for cell in range(cells.nlist):
        count_in_cell = source_cells.invlists.list_size(cell)
        if not count_in_cell:
            continue
        ids = faiss.rev_swig_ptr(source_cells.invlists.get_ids(cell), count_in_cell)
        codes = faiss.rev_swig_ptr(source_cells.invlists.get_codes(cell), count_in_cell * cells.code_size)
        selected = (ids >= rows.start) & (ids < rows.stop)
        # The variables keep the arrays alive while FAISS reads them.
        new_ids = ids[selected] - rows.start
        new_codes = codes.reshape(count_in_cell, cells.code_size)[selected]
        cells.invlists.add_entries(cell, len(new_ids), faiss.swig_ptr(new_ids), faiss.swig_ptr(new_codes))
    cells.ntotal = shard.ntotal = len(rows)
    faiss.write_index(shard, str(target / FAISS_INDEX))


def _split_bm25(folder: Path, rows: range, out: Path) -> None:
    """Write a BM25 index of these rows, with their scores in the whole index."""
    from retrieval_server.search.bm25s_import import bm25s

    index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
    documents = index.scores["indices"]
    borders = index.scores["indptr"]
    selected = (documents >= rows.start) & (documents < rows.stop)
    offsets = np.concatenate([[0], np.cumsum(selected)])  # selected entries before each position
    index.scores = {
        "data": np.asarray(index.scores["data"][selected]),
        "indices": (documents[selected] - rows.start).astype(documents.dtype),
        "indptr": offsets[borders].astype(borders.dtype),
        "num_docs": len(rows),
    }
    index.save(out, show_progress=False)
