"""Dense search: an encoder makes vectors (encoding.py), FAISS finds the largest inner products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from retrieval_server.backends import Backend, Hit
from retrieval_server.encoder import Encoder
from retrieval_server.encoding import Vectors
from retrieval_server.errors import BuildError, IndexFolderError
from retrieval_server.manifest import DenseSection, require_equal

# FAISS multiplies matrices with BLAS only for batches above this size, and its default (queries x dimension
# of 128,000 in 1.15; 20 queries before) sends the batches of a retrieval server through the slow path: on two
# cores 42 ms a query instead of 2-3 ms for 128 queries against 200,000 vectors.
faiss.cvar.distance_compute_blas_threshold = 16

FACTORIES = ("Flat",)
_READ_BACK = 65536  # vectors added to the index at once
# A matrix product rounds differently for different batch sizes (in the last digits of a float32), which can
# swap passages of almost equal score. So FAISS only chooses candidates, this many more than topk; they are
# scored again in float64, each query for itself, and what is sent does not depend on the batch.
_SPARE = 8
# How far FAISS's score of a passage may be from the exact one, as a share of the two vectors' lengths: about
# ten times what is seen, at 1,024 dimensions.
_ROUNDING = 2**-18


def check_factory(factory: str) -> None:
    """Refuse a FAISS factory string that this version does not build."""
    if factory not in FACTORIES:
        raise BuildError(
            f"--factory {factory}: this version builds {', '.join(FACTORIES)} (exact search) only."
        )


def write_faiss_index(vectors: Vectors, factory: str, path: Path) -> None:
    """Make the FAISS index of vectors on disk."""
    check_factory(factory)
    index = faiss.index_factory(vectors.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    for first in range(0, len(vectors), _READ_BACK):
        index.add(vectors[first : first + _READ_BACK])
    faiss.write_index(index, str(path))


class DenseBackend(Backend):
    """A FAISS index with the encoder of its vectors."""

    def __init__(self, path: Path, section: DenseSection, count: int, encoder: Encoder):
        try:
            self._index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise IndexFolderError(f"{path}: no readable FAISS index. Build the index again.") from error
        remedy = "Build the index again."
        require_equal(f"{path}: vectors", count, self._index.ntotal, remedy)
        require_equal(f"{path}: dimension", section.encoder.dimension, self._index.d, remedy)
        metric = "inner_product" if self._index.metric_type == faiss.METRIC_INNER_PRODUCT else "other"
        require_equal(f"{path}: metric", section.metric, metric, remedy)
        self._encoder = encoder

    def prepare(self, queries: Sequence[str]) -> np.ndarray:
        """The queries' vectors, (queries, dimension)."""
        return self._encoder.encode_queries(queries)

    def find(self, prepared: np.ndarray, topk: int) -> list[list[Hit]]:
        wanted = min(topk, self._index.ntotal)
        among = min(wanted + _SPARE, self._index.ntotal)
        found = self._index.search(prepared, among)
        return [
            self._rank(query, scores, rows, wanted)
            for query, scores, rows in zip(prepared, *found, strict=True)
        ]

    def _rank(self, query: np.ndarray, scores: np.ndarray, rows: np.ndarray, topk: int) -> list[Hit]:
        """The ``topk`` best of FAISS's candidates by exact score, equal scores in corpus order.

        If a passage that FAISS left out could belong to them, more candidates than near-ties are fetched.
        """
        found = rows[rows >= 0]  # FAISS fills up with row -1
        if not len(found):
            return []
        vectors = self._index.reconstruct_batch(found).astype(np.float64)
        exact = (vectors * query).sum(axis=1)
        best = np.lexsort((found, -exact))[:topk]
        if len(found) == len(rows) < self._index.ntotal:
            slack = _ROUNDING * np.linalg.norm(query) * np.linalg.norm(vectors, axis=1).max()
            if exact[best[-1]] - scores[-1] <= slack:
                more = min(4 * len(rows), self._index.ntotal)
                scores, rows = self._index.search(query[None], more)
                return self._rank(query, scores[0], rows[0], topk)
        return [Hit(int(found[i]), float(np.float32(exact[i]))) for i in best]
