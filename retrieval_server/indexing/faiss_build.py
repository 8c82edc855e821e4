"""Builds a FAISS index of vectors, for any factory string that works with inner products.

Quantisers and cell centres are learned from a random sample of limited size, drawn with a fixed seed, so that
training takes as long for thirty million passages as for one million. Then the vectors are added in blocks.

If a file for the half-built index is named, the index is saved there after training, after every few million
vectors, and when it is finished, so that an interrupted build can resume.
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
from retrieval_server.folder.hard_links import link_or_copy
from retrieval_server.indexing.embedding_files import Embeddings
from retrieval_server.search.vectors.faiss_search import cell_count, widen_cell_search

log = logging.getLogger(__name__)
#: The vectors of the passages: encoded by this build, or imported.
Vectors = VectorFiles | Embeddings
#: The smallest number of vectors to train on; FAISS does not use more of them for 256 centroids.
MIN_TRAINING_VECTORS = 65_536
#: The number of vectors to train on for each cell of an IVF index; FAISS warns below 39.
TRAIN_PER_CELL = 40
#: The number of vectors that are added at once.
_BLOCK = 65_536
#: The number of vectors after which the half-built index is saved. Adding them takes some minutes, and they
#: need 0.4 GB at 2 bits and 768 dimensions.
SAVE_INTERVAL = 2_097_152
#: The seed with which the training sample is drawn.
_SEED = 0


def make_index(factory: str, dimension: int) -> faiss.Index:
    """Return an empty index for inner products. Raises UserError for an unsuitable factory string."""
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        metric = index.metric_type
    except (RuntimeError, MemoryError) as error:
        raise UserError(
            f"--factory {factory}: FAISS makes no inner-product index of {dimension} dimensions of it "
            f"({faiss_message(error)}). Well-known ones: Flat, SQ8, HNSW32, IVF4096,Flat, IVF4096,PQ64."
        ) from None
    if metric != faiss.METRIC_INNER_PRODUCT:
        raise UserError(f"--factory {factory}: FAISS makes it for another metric than the inner product.")
    if "IDMap" in factory:
        raise UserError(f"--factory {factory}: rows are the ids here; leave IDMap out.")
    _leave_out_polysemous_training(index)
    return index


def write_faiss_index(
    vectors: Vectors,
    factory: str,
    path: Path,
    train_sample: int | None = None,
    *,
    checkpoint: Path | None = None,
    progress: bool = False,
) -> None:
    """Train an index on a sample of the vectors, add all vectors, and write it to `path`.

    `train_sample` is the number of vectors to train on (None: as many as the kind of index needs).
    `checkpoint` is the file of the half-built index. If it exists, the build resumes with it, so it must
    belong to these vectors and this factory string; a damaged file is ignored. At the end it contains the
    finished index, `path` is a link to it or a copy (`link_or_copy`), and the caller must remove it.

    Raises UserError if FAISS cannot build the index or there is too little memory, and OSError if the index
    cannot be saved.
    """
    index = _half_built(checkpoint, vectors)
    try:
        if index is None:
            index = make_index(factory, vectors.dimension)
            if not index.is_trained:
                index.train(_sample(vectors, train_sample or sample_size(cell_count(index))))
            widen_cell_search(index)
            _save(index, checkpoint)
        _add_vectors(index, vectors, checkpoint, progress)
    except RuntimeError as error:
        raise UserError(
            f"--factory {factory}: FAISS could not build it from {len(vectors)} passages ("
            f"{faiss_message(error)}). A small corpus needs fewer cells and centroids, and Flat always works."
        ) from None
    except MemoryError:
        raise UserError(
            f"--factory {factory}: {len(vectors)} vectors with their index do not fit into memory. Take "
            "--preset small, or a machine with more memory."
        ) from None
    if checkpoint is None:
        _write(index, path)
    else:
        path.unlink(missing_ok=True)
        link_or_copy(checkpoint, path)


def _add_vectors(index: faiss.Index, vectors: Vectors, checkpoint: Path | None, progress: bool) -> None:
    """Add the vectors that the index does not have yet, and save it from time to time."""
    total = len(vectors)
    with tqdm(total=total, initial=index.ntotal, desc="adding", unit=" vectors", disable=not progress) as bar:
        for start in range(index.ntotal, total, _BLOCK):
            block = vectors[start : start + _BLOCK]
            index.add(block)
            bar.update(len(block))
            if index.ntotal % SAVE_INTERVAL < _BLOCK or index.ntotal == total:
                _save(index, checkpoint)


def sample_size(cells: int) -> int:
    """Return the number of vectors to train on for an index with this number of cells."""
    return max(MIN_TRAINING_VECTORS, TRAIN_PER_CELL * cells)


def _save(index: faiss.Index, path: Path | None) -> None:
    """Write the half-built index to `path`, if there is such a file. Raises OSError."""
    if path is not None:
        with replacing(path) as unfinished:
            _write(index, unfinished)


def _write(index: faiss.Index, path: Path) -> None:
    """Write an index to a file. Raises OSError."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # the disk's fault (`disk_errors`), not the factory string's
        raise OSError(faiss_message(error)) from error


def _half_built(path: Path | None, vectors: Vectors) -> faiss.Index | None:
    """Return the half-built index of these vectors, or None if it is missing, damaged or of other vectors.

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


def _sample(vectors: Vectors, max_vectors: int) -> np.ndarray:
    """Return at most `max_vectors` random vectors in row order. They are the same for every build."""
    if len(vectors) <= max_vectors:
        return vectors[:]
    rows = np.random.default_rng(_SEED).choice(len(vectors), max_vectors, replace=False, shuffle=False)
    rows.sort()  # so that the file is read once from beginning to end
    sample = np.empty((max_vectors, vectors.dimension), np.float32)
    for first_row in range(0, len(vectors), _BLOCK):
        low, high = np.searchsorted(rows, (first_row, first_row + _BLOCK))
        sample[low:high] = vectors[first_row : first_row + _BLOCK][rows[low:high] - first_row]
    return sample


def _leave_out_polysemous_training(index: faiss.Index) -> None:
    """Skip the reordering of product quantisers, which takes minutes and serves an unused kind of search."""
    index = faiss.downcast_index(index)
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False
    for part in ("index", "base_index", "refine_index", "storage"):
        if getattr(index, part, None) is not None:
            _leave_out_polysemous_training(getattr(index, part))


def faiss_message(error: RuntimeError | MemoryError) -> str:
    """Return FAISS's error message without the position in its C++ source; without one, the error's type."""
    last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    line = re.sub(r"^Error in .* at \S+:\d+: ", "", last_line)
    return line.rpartition("Error: ")[2].rpartition(" failed: ")[2]
