"""Exact search: compares every stored vector with every query, in several threads.

FAISS hardly divides a small batch among threads: it compares a single query with all vectors in one thread,
and a few queries in a matrix product that gains little from a second thread. So here each thread searches a
part of the rows for all queries, and the best hits of all parts are merged. On two cores a single query then
takes 0.64 of the time, and a batch of 4 to 12 queries 0.5 to 0.7 (docs/results/retrieval_server.md). The
threads belong to `FlatSearch`, so that FAISS's OpenMP runtime does not start any, which would slow the
encoder down when idle.

FAISS only chooses candidates, a few more than topk. These are scored again in float64, with equal scores in
corpus order, and further candidates are fetched if a near-tie could have been cut off. So the hits depend
neither on the other queries of the batch nor on how the rows are divided.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np

from retrieval_server.search.backends import Hit

_SPARE_CANDIDATES = 8  # candidates beyond topk
#: Largest error of FAISS's score of a passage, relative to the product of the two vectors' lengths. This is
#: about ten times the error that is seen at 1,024 dimensions.
_ROUNDING = 2**-18
#: The number of values from which on a separate thread pays off; comparing them with a query takes about 0.2
#: ms.
_MIN_PART_VALUES = 2**20
#: The batch size from which on FAISS multiplies matrices with BLAS instead of comparing vector by vector,
#: which is faster for a single query. With FAISS's far higher default, 128 queries against 200,000 vectors
#: take 42 ms per query on two cores instead of 2 to 3.
_BLAS_FROM = 2
#: FAISS 1.15 compares the threshold with queries x dimension (default 128,000), older versions with queries
#: (20).
_BY_PRODUCT = faiss.cvar.distance_compute_blas_threshold > 1_000
#: The largest dimension for which `multiply_batches` was called.
_largest_dimension = 0


def multiply_batches(dimension: int) -> None:
    """Make FAISS compare a batch of queries by a matrix product, and a single query directly.

    The setting holds for the whole process. It is made for the largest `dimension` of all calls, so that the
    rounding of a search does not depend on which index was searched before. With smaller dimensions FAISS
    therefore uses the product only from larger batches on.
    """
    global _largest_dimension
    _largest_dimension = max(_largest_dimension, dimension)
    faiss.cvar.distance_compute_blas_threshold = _BLAS_FROM * (_largest_dimension if _BY_PRODUCT else 1)


class FlatSearch:
    """Exact search of (queries, dimension) vectors.

    The rows are divided among `threads` threads for a batch (None: FAISS's default), and among `alone`
    threads for a single query (None: the same number).
    """

    def __init__(self, index: faiss.Index, threads: int | None = None, alone: int | None = None):
        threads = threads or faiss.omp_get_max_threads()
        alone = alone or threads
        multiply_batches(index.d)
        self._index = index
        self._batch_parts, self._single_parts = _parts(index, threads), _parts(index, alone)
        self._threads = ThreadPoolExecutor(
            max(threads, alone), "faiss", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """Return at most `topk` hits for each query, best first."""
        depth = min(topk, self._index.ntotal)
        candidates = min(depth + _SPARE_CANDIDATES, self._index.ntotal)
        if not candidates:
            return [[] for _ in queries]
        return self._rank(queries, *self._candidates(queries, candidates), depth)

    def close(self) -> None:
        """End the threads. No search may be running."""
        self._threads.shutdown()

    def _candidates(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return FAISS's scores and rows, (queries, depth) each, best first. Missing hits have row -1."""
        parts = self._single_parts if len(queries) == 1 else self._batch_parts
        results = list(self._threads.map(lambda part: self._index.search(queries, depth, params=part), parts))
        if len(results) == 1:
            return results[0]
        scores, rows = (np.hstack(column) for column in zip(*results, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)

    def _rank(self, queries: np.ndarray, scores: np.ndarray, rows: np.ndarray, topk: int) -> list[list[Hit]]:
        """Return the `topk` best of FAISS's candidates by exact score, equal scores in corpus order.

        `scores` and `rows` are (queries, candidates). If a passage that FAISS left out could be among the
        best of a query, the query is searched again with four times as many candidates.
        """
        valid = rows >= 0
        vectors = self._index.reconstruct_batch(np.where(valid, rows, 0).ravel())
        vectors = vectors.reshape(*rows.shape, -1).astype(np.float64)
        exact = np.where(valid, (vectors * queries[:, None]).sum(axis=2), -np.inf)
        best = np.lexsort((rows, -exact))[:, :topk]
        best_rows, best_scores = (np.take_along_axis(column, best, axis=1) for column in (rows, exact))
        slack = _ROUNDING * np.linalg.norm(queries, axis=1) * np.linalg.norm(vectors, axis=2).max(axis=1)
        may_miss_hits = valid.all(axis=1) & (best_scores[:, -1] <= scores[:, -1] + slack)
        depth = min(4 * rows.shape[1], self._index.ntotal)
        results = []
        for i, pairs in enumerate(zip(best_rows.tolist(), best_scores.tolist(), strict=True)):
            if may_miss_hits[i] and depth > rows.shape[1]:
                query = queries[i : i + 1]
                results += self._rank(query, *self._candidates(query, depth), topk)
            else:
                results.append([Hit(row, score) for row, score in zip(*pairs, strict=True) if row >= 0])
        return results


class _RowRange(faiss.SearchParameters):
    """Limits a search to the rows from `first` to `end` (excluded)."""

    def __init__(self, first: int, end: int):
        self._selector = faiss.IDSelectorRange(first, end)  # kept alive here, since FAISS only has a pointer
        super().__init__(sel=self._selector)


def _parts(index: faiss.Index, max_parts: int) -> list[_RowRange | None]:
    """Divide the rows of an index into at most `max_parts` equal parts; [None] stands for a single part."""
    rows = index.ntotal
    parts = min(max_parts, rows * index.d // _MIN_PART_VALUES)
    if parts < 2:
        return [None]
    return [_RowRange(part * rows // parts, (part + 1) * rows // parts) for part in range(parts)]
