"""Exact search: compares every stored vector with every query, in several threads.

FAISS itself hardly divides a small batch: it compares a single query with all vectors in one thread, and a
few queries in a matrix product that gains little from a second. So each thread searches a part of the rows,
for all queries, and the best of all parts are merged. On two cores a single query takes 0.64 of the time in
this way, and a batch of 4 to 12 queries 0.5 to 0.7 (docs/results/retrieval_server.md). The threads are this
class's own, so FAISS's OpenMP runtime starts none, whose idle ones would slow the encoder down.

FAISS only chooses candidates, a few more than topk; these are scored again in float64, equal scores in corpus
order, and still more are fetched where a near-tie could have been cut off. So the hits depend neither on the
other queries of the batch nor on how the rows are divided.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np

from retrieval_server.search.backends import Hit

_SPARE_CANDIDATES = 8  # candidates beyond topk
# How far FAISS's score of a passage may be from the exact one, as a share of the two vectors' lengths: about
# ten times what is seen, at 1,024 dimensions.
_ROUNDING = 2**-18
#: A thread is worth its start for so many numbers: it compares them with a query in about 0.2 ms.
_MIN_PART_VALUES = 2**20
#: FAISS multiplies matrices with BLAS for batches from this size on, and else compares vector by vector,
#: which is faster for one query alone. Its own default is far higher: on two cores, 42 ms a query instead of
#: 2 to 3 for 128 queries against 200,000 vectors.
_BLAS_FROM = 2
# FAISS 1.15 compares the threshold with queries x dimension (default 128,000), older ones with queries (20).
_BY_PRODUCT = faiss.cvar.distance_compute_blas_threshold > 1_000
#: The largest dimension for which `multiply_batches` was called.
_largest_dimension = 0


def multiply_batches(dimension: int) -> None:
    """Have FAISS compare a batch of queries of this dimension by a matrix product, and a single one directly.

    It holds for the whole process, so it is made for the largest dimension that was ever named: with smaller
    ones the product begins at larger batches. Otherwise the rounding of a search would depend on which index
    was searched before.
    """
    global _largest_dimension
    _largest_dimension = max(_largest_dimension, dimension)
    faiss.cvar.distance_compute_blas_threshold = _BLAS_FROM * (_largest_dimension if _BY_PRODUCT else 1)


class FlatSearch:
    """Exact search of (queries, dimension) vectors.

    `threads`: among how many the rows are divided for a batch, `alone`: for one query. None for the first
    is FAISS's own number, for the second the first.
    """

    def __init__(self, index: faiss.Index, threads: int | None = None, alone: int | None = None):
        threads = threads or faiss.omp_get_max_threads()
        alone = alone or threads
        multiply_batches(index.d)
        self._index = index
        self._together, self._alone = _parts(index, threads), _parts(index, alone)
        self._threads = ThreadPoolExecutor(
            max(threads, alone), "faiss", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        depth = min(topk, self._index.ntotal)
        candidates = min(depth + _SPARE_CANDIDATES, self._index.ntotal)
        if not candidates:
            return [[] for _ in queries]
        return self._rank(queries, *self._candidates(queries, candidates), depth)

    def close(self) -> None:
        self._threads.shutdown()

    def _candidates(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """FAISS's scores and rows, each (queries, depth), best first; row -1 where there are fewer."""
        parts = self._alone if len(queries) == 1 else self._together
        results = list(self._threads.map(lambda part: self._index.search(queries, depth, params=part), parts))
        if len(results) == 1:
            return results[0]
        scores, rows = (np.hstack(column) for column in zip(*results, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)

    def _rank(self, queries: np.ndarray, scores: np.ndarray, rows: np.ndarray, topk: int) -> list[list[Hit]]:
        """The `topk` best of FAISS's candidates by exact score, equal scores in corpus order.

        `scores` and `rows` are (queries, candidates). If a passage that FAISS left out could belong to a
        query's best, more candidates than near-ties are fetched for it.
        """
        valid = rows >= 0
        vectors = self._index.reconstruct_batch(np.where(valid, rows, 0).ravel())
        vectors = vectors.reshape(*rows.shape, -1).astype(np.float64)
        exact = np.where(valid, (vectors * queries[:, None]).sum(axis=2), -np.inf)
        best = np.lexsort((rows, -exact))[:, :topk]
        best_rows, best_scores = (np.take_along_axis(column, best, axis=1) for column in (rows, exact))
        slack = _ROUNDING * np.linalg.norm(queries, axis=1) * np.linalg.norm(vectors, axis=2).max(axis=1)
        open_ends = valid.all(axis=1) & (best_scores[:, -1] <= scores[:, -1] + slack)
        depth = min(4 * rows.shape[1], self._index.ntotal)
        return [
            self._rank(queries[i : i + 1], *self._candidates(queries[i : i + 1], depth), topk)[0]
            if open_ends[i] and depth > rows.shape[1]
            else [Hit(row, score) for row, score in zip(*hits, strict=True) if row >= 0]
            for i, hits in enumerate(zip(best_rows.tolist(), best_scores.tolist(), strict=True))
        ]


class _RowRange(faiss.SearchParameters):
    """Limits a search to the rows from `first` to before `end`."""

    def __init__(self, first: int, end: int):
        self._selector = faiss.IDSelectorRange(first, end)  # FAISS has only a pointer to it
        super().__init__(sel=self._selector)


def _parts(index: faiss.Index, max_parts: int) -> list[_RowRange | None]:
    """The rows of an index in at most so many parts of about the same size; [None] is all of them in one."""
    count = index.ntotal
    number = min(max_parts, count * index.d // _MIN_PART_VALUES)
    if number < 2:
        return [None]
    return [_RowRange(i * count // number, (i + 1) * count // number) for i in range(number)]
