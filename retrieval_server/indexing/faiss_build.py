"""Builds a FAISS index of raw vectors, for any factory string with inner products.

Quantisers and cell centres are learned from a random sample of bounded size, drawn with a fixed seed, so that
training takes as long for one million passages as for thirty million. The vectors are then added in blocks.

Given a file for it, the index is saved after training, after every few million vectors, and when it is
finished, so that a build that was killed continues there.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import faiss
import numpy as np
from tqdm import tqdm

from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.errors import UserError
from retrieval_server.folder.atomic import replacing
from retrieval_server.folder.publication import link_or_copy
from retrieval_server.search.vectors.faiss_search import cell_count, widen_cell_search

log = logging.getLogger(__name__)
#: Vectors to train on, at least: FAISS uses no more of them for 256 centroids.
MIN_TRAINING_VECTORS = 65_536
#: ... and for each cell of an IVF index: FAISS warns below 39.
TRAIN_PER_CELL = 40
_BLOCK = 65_536  # vectors added at once
#: Vectors after which a half-built index is saved: 0.4 GB at 2 bits and 768 dimensions, some minutes of work.
SAVE_INTERVAL = 2_097_152
_SEED = 0


def make_index(factory: str, dimension: int) -> faiss.Index:
    """An empty index for inner products. Raises UserError for a string that FAISS does not take."""
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        metric = index.metric_type
    except RuntimeError as error:
        raise UserError(
            f"--factory {factory}: FAISS makes no inner-product index of {dimension} dimensions of it "
            f"({faiss_message(error)}). Well-known ones: Flat, SQ8, HNSW32, IVF4096,Flat, IVF4096,PQ64."
        ) from None
    if metric != faiss.METRIC_INNER_PRODUCT:
        raise UserError(f"--factory {factory}: FAISS makes it for another metric than the inner product.")
    _leave_out_polysemous_training(index)
    if "IDMap" in factory:
        raise UserError(f"--factory {factory}: rows are the ids here; leave IDMap out.")
    return index


def write_faiss_index(
    vectors: VectorFiles,
    factory: str,
    path: Path,
    train_sample: int | None = None,
    *,
    saved: Path | None = None,
    progress: bool = False,
) -> None:
    """Train on a sample of the vectors, add all, write the index.

    `train_sample` is the number of vectors to train on; None: as many as the index's kind needs. `saved`
    is where a half-built index is kept: if it is there it is continued, and it must be of these vectors and
    this factory string; a damaged one is built anew. At the end it is the finished index, to which `path`
    is a link. The caller removes it.

    Raises UserError if FAISS cannot build it, or there is too little memory for what is kept.
    """
    index = _half_built(saved, vectors)
    try:
        if index is None:
            index = make_index(factory, vectors.dimension)
            if not index.is_trained:
                index.train(_sample(vectors, train_sample or sample_size(cell_count(index))))
            widen_cell_search(index)
            _save(index, saved)
        _add_vectors(index, vectors, saved, progress)
    except RuntimeError as error:
        raise UserError(
            f"--factory {factory}: FAISS could not build it from {len(vectors)} passages ("
            f"{faiss_message(error)}). A small corpus needs fewer cells and centroids, and Flat always works."
        ) from None
    if saved is None:
        faiss.write_index(index, str(path))
    else:
        path.unlink(missing_ok=True)
        link_or_copy(saved, path)


def _add_vectors(index: faiss.Index, vectors: VectorFiles, saved: Path | None, progress: bool) -> None:
    """Add the vectors that the index does not have, and save it from time to time."""
    total = len(vectors)
    with tqdm(total=total, initial=index.ntotal, desc="adding", unit=" vectors", disable=not progress) as bar:
        for start in range(index.ntotal, total, _BLOCK):
            block = vectors[start : start + _BLOCK]
            index.add(block)
            bar.update(len(block))
            if index.ntotal % SAVE_INTERVAL < _BLOCK or index.ntotal == total:
                _save(index, saved)


def sample_size(cells: int) -> int:
    """The number of vectors to train on, for an index of so many cells."""
    return max(MIN_TRAINING_VECTORS, TRAIN_PER_CELL * cells)


def _save(index: faiss.Index, path: Path | None) -> None:
    """Write the half-built index to `path`, if there is one."""
    if path is not None:
        with replacing(path) as unfinished:
            faiss.write_index(index, str(unfinished))


def _half_built(path: Path | None, vectors: VectorFiles) -> faiss.Index | None:
    """The index of these vectors that an interrupted build has left; None if there is none, or a damaged one.

    Raises UserError if it does not fit into memory.
    """
    if path is None or not path.exists():
        return None
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        log.warning("%s: damaged (%s); the index is built from the beginning", path, faiss_message(error))
        return None
    except MemoryError:
        raise UserError(
            f"{path}: the half-built index does not fit into memory. Free some, or remove the file."
        ) from None
    if index.d != vectors.dimension or index.ntotal > len(vectors):
        log.warning("%s: not an index of these vectors; it is built from the beginning", path)
        return None
    return index


def _sample(vectors: VectorFiles, max_vectors: int) -> np.ndarray:
    """Random vectors, the same for every build, in the order of their rows; all if there are not more."""
    if len(vectors) <= max_vectors:
        return vectors[:]
    rows = np.random.default_rng(_SEED).choice(len(vectors), max_vectors, replace=False, shuffle=False)
    rows.sort()  # so that the file is read once, from beginning to end
    sample = np.empty((max_vectors, vectors.dimension), np.float32)
    for first_row in range(0, len(vectors), _BLOCK):
        low, high = np.searchsorted(rows, (first_row, first_row + _BLOCK))
        sample[low:high] = vectors[first_row : first_row + _BLOCK][rows[low:high] - first_row]
    return sample


def _leave_out_polysemous_training(index: faiss.Index) -> None:
    """Skip the reordering of product quantisers: minutes, for a kind of search that is not used here."""
    index = faiss.downcast_index(index)
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False
    for part in ("index", "base_index", "storage"):
        if getattr(index, part, None) is not None:
            _leave_out_polysemous_training(getattr(index, part))


def faiss_message(error: RuntimeError) -> str:
    """FAISS's own message, without the line of its C++ source."""
    line = re.sub(r"^Error in .* at \S+:\d+: ", "", str(error).strip().splitlines()[-1])
    return line.rpartition("Error: ")[2].rpartition(" failed: ")[2]
