"""Searches a FAISS index, with hits that depend on the query alone, not on its batch or on topk.

FAISS by itself does not give that. A matrix product rounds differently for each batch size, HNSW searches
further for a larger topk, and some quantisers treat a batch differently from one query. So FAISS only chooses
candidates; these are scored again in float64, query by query, equal scores in corpus order:

- `FlatSearch`, for exact indexes (flat_search.py): a few candidates more than topk, and still more where a
  near-tie could have been cut off;
- `ApproximateSearch`, for all others: one query at a time in each of several threads, always with the same
  numbers of candidates (see `search_nested`). Scores are those of the vectors that the index stores: of a
  quantised index, the decoded vectors; of a compressed index with rescoring, the rows of a file beside it;
- `GpuSearch`, for an index with a copy on GPUs: the copy chooses candidates for the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import faiss
import numpy as np

from retrieval_server.errors import UserError
from retrieval_server.search.backends import Hit, search_nested
from retrieval_server.search.vectors.flat_search import FlatSearch
from retrieval_server.search.vectors.stored_rows import StoredRows

#: Candidates of a query in an approximate index, unless topk needs more.
MIN_CANDIDATES = 32
#: Cells that a graph over them looks at, at least, to find the nearest.
_MIN_VISITED_CELLS = 64
_GPU_MAX_HITS = 2048  # hits for a query that FAISS can give on a GPU


@dataclass(frozen=True)
class SearchParameters:
    """The settings of an approximate search; None for FAISS's default, or if the index has no such setting.

    `nprobe`: number of cells of an IVF index searched. `ef_search`: length of HNSW's candidate list.
    """

    nprobe: int | None = None
    ef_search: int | None = None

    def apply(self, index: faiss.Index, *, compressed: bool = False) -> None:
        """Apply them to the index. Raises UserError, which names the flag that does not fit it.

        In a `compressed` index, one that rescores, a graph over the cells looks at enough of them, unless
        `ef_search` is given. In any other it keeps the list of its file: the recall in the manifests of
        existing indexes was measured with that.
        """
        for flag, name, value, kind in (
            ("--nprobe", "nprobe", self.nprobe, "IVF"),
            ("--ef-search", "efSearch", self.ef_search, "HNSW"),
        ):
            if value is None:
                continue
            try:
                faiss.ParameterSpace().set_index_parameter(index, name, value)
            except RuntimeError:
                raise UserError(
                    f"{flag} {value}: this index has no {kind} part. Drop it, or take --factory {kind}..."
                ) from None
        if compressed and self.ef_search is None:
            widen_cell_search(index)


def is_exact(index: faiss.Index) -> bool:
    """Whether a search compares every stored float32 vector with the query: the factory string Flat."""
    return type(faiss.downcast_index(index)) is faiss.IndexFlat or isinstance(index, faiss.IndexFlatIP)


def cell_count(index: faiss.Index) -> int:
    """The number of cells of an IVF index, 0 for another kind."""
    ivf = faiss.try_extract_index_ivf(index)
    return 0 if ivf is None else ivf.nlist


def widen_cell_search(index: faiss.Index) -> None:
    """Let a graph over the cells of an IVF index look at more of them than are searched.

    FAISS's default, a list of 16 candidates or as many as cells are searched, misses some of the nearest.
    """
    ivf = faiss.try_extract_index_ivf(index)
    graph = None if ivf is None else faiss.downcast_index(ivf.quantizer)
    if isinstance(graph, faiss.IndexHNSW):
        graph.hnsw.efSearch = max(_MIN_VISITED_CELLS, 2 * ivf.nprobe)


class ApproximateSearch:
    """Search of (queries, dimension) vectors in any other index: each query alone, `threads` at once.

    With `stored` the first `candidates` of a query, or more if topk needs them, are scored from those
    rows instead of the index's own vectors, which need not be decodable then.
    """

    def __init__(
        self,
        index: faiss.Index,
        threads: int | None = None,
        *,
        stored: StoredRows | None = None,
        candidates: int = MIN_CANDIDATES,
    ):
        self._index = index
        self._candidates = candidates
        self._vectors = index.reconstruct_batch if stored is None else stored.take
        if stored is None:
            _number_rows(index)
        # One thread for each query and none within FAISS, which can hardly divide a single query anyway.
        self._threads = ThreadPoolExecutor(
            threads or os.cpu_count() or 1, "faiss", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        return list(self._threads.map(lambda query: self._find_one(query, topk), queries))

    def close(self) -> None:
        self._threads.shutdown()

    def _find_one(self, query: np.ndarray, topk: int) -> list[Hit]:
        """The hits of one query, (dimension,)."""

        def search(depth: int) -> list[Hit]:
            return _rescore(self._vectors, query, self._index.search(query[None], depth)[1][0])

        return search_nested(search, topk, self._index.ntotal, self._candidates)


class GpuSearch:
    """Search of (queries, dimension) vectors by a copy on GPUs; `index` in main memory gives the scores."""

    def __init__(self, copy: faiss.Index, index: faiss.Index):
        self._copy, self._index = copy, index
        _number_rows(index)

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first; at most 2,048."""

        @cache
        def candidates(depth: int) -> np.ndarray:
            return self._copy.search(queries, depth)[1]

        def search(i: int, depth: int) -> list[Hit]:
            return _rescore(self._index.reconstruct_batch, queries[i], candidates(depth)[i])

        limit = min(self._index.ntotal, _GPU_MAX_HITS)
        return [search_nested(partial(search, i), topk, limit) for i in range(len(queries))]

    def close(self) -> None:
        """Does nothing: the copy is released with its last reference."""


#: The kinds of search that `open_search` returns.
Search = FlatSearch | ApproximateSearch | GpuSearch


def _number_rows(index: faiss.Index) -> None:
    """Give an IVF index a table from rows to positions in its cells: 8 bytes for each passage."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.make_direct_map(True)


def _rescore(vectors: Callable[[np.ndarray], np.ndarray], query: np.ndarray, rows: np.ndarray) -> list[Hit]:
    """The candidates by exact score of their `vectors(rows)`, equal scores in corpus order."""
    rows = np.sort(rows[rows >= 0])
    if not len(rows):
        return []
    exact = (vectors(rows).astype(np.float64) * query).sum(axis=1)
    return [Hit(int(rows[i]), float(exact[i])) for i in np.lexsort((rows, -exact))]


def open_search(
    index: faiss.Index,
    copy_to_gpus: Callable[[faiss.Index], faiss.Index] = lambda index: index,
    threads: int | None = None,
    alone: int | None = None,
) -> Search:
    """The search that fits the index. `copy_to_gpus` may copy it to GPUs; it returns the copy or the index.

    `threads`: among how many an exact index is divided (`alone`: for one query; None: FAISS's own
    number), or how many queries are searched at once in an approximate index (None: one for each core).
    """
    copy = copy_to_gpus(index)
    if copy is not index:
        return GpuSearch(copy, index)
    return FlatSearch(index, threads, alone) if is_exact(index) else ApproximateSearch(index, threads)
