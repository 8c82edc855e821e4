"""Searches a FAISS index. The hits depend on the query alone, and neither on its batch nor on topk.

FAISS itself does not guarantee that. A matrix product rounds differently for each batch size, HNSW searches
further for a larger topk, and some quantisers treat a batch differently from a single query. So FAISS only
chooses candidates. These are scored again in float64, query by query, with equal scores in corpus order:

- `FlatSearch` searches exact indexes (flat_search.py). It takes a few more candidates than topk, and further
  ones if a near-tie could have been cut off.
- `ApproximateSearch` searches all other indexes: one query at a time in each of several threads, always with
  the same numbers of candidates (see `search_nested`). The scores are computed from the vectors that the
  index stores: the decoded vectors of a quantised index, or the rows of a separate file for a compressed
  index with rescoring.
- `GpuSearch` searches an index that has a copy on GPUs: the copy chooses the candidates for the whole batch.
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
#: The smallest number of cells that a graph over the cells visits to find the nearest ones.
_MIN_VISITED_CELLS = 64
_GPU_MAX_HITS = 2048  # the largest number of hits for a query that FAISS returns on a GPU
#: Returns the vectors, (rows, dimension), of an array of row numbers.
VectorReader = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SearchParameters:
    """The settings of an approximate search. None means FAISS's default, or that there is no such setting."""

    #: The number of cells of an IVF index that are searched.
    nprobe: int | None = None
    #: The length of HNSW's candidate list.
    ef_search: int | None = None

    def apply(self, index: faiss.Index, *, compressed: bool = False) -> None:
        """Apply the settings to the index.

        In a `compressed` index, one with rescoring, the search of a graph over the cells is widened, unless
        `ef_search` is set. Other indexes keep the setting in their file, because the recall in the manifests
        of existing indexes was measured with it. Raises UserError, which names the flag that does not fit the
        index.
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
    """Return whether a search compares the query with every stored float32 vector (factory string Flat)."""
    return type(faiss.downcast_index(index)) is faiss.IndexFlat or isinstance(index, faiss.IndexFlatIP)


def cell_count(index: faiss.Index) -> int:
    """Return the number of cells of an IVF index, and 0 for another kind of index."""
    ivf = faiss.try_extract_index_ivf(index)
    return 0 if ivf is None else ivf.nlist


def check_nprobe(nprobe: int | None, index: faiss.Index) -> None:
    """Raise UserError for a --nprobe above the number of cells of an IVF index, which FAISS would clamp."""
    if nprobe is not None and nprobe > (cells := cell_count(index)) > 0:
        raise UserError(f"--nprobe {nprobe}: the index has {cells} cells: give at most {cells}, which is all")


def widen_cell_search(index: faiss.Index) -> None:
    """Make the graph over the cells of an IVF index visit more cells than are searched.

    FAISS by default keeps 16 candidates, or as many as cells are searched, and misses some of the nearest
    cells.
    """
    ivf = faiss.try_extract_index_ivf(index)
    graph = None if ivf is None else faiss.downcast_index(ivf.quantizer)
    if isinstance(graph, faiss.IndexHNSW):
        graph.hnsw.efSearch = max(_MIN_VISITED_CELLS, 2 * ivf.nprobe)


class ApproximateSearch:
    """Searches (queries, dimension) vectors in an index that is not exact.

    Each query is searched separately, `threads` of them at once (None: one for each core). With `stored`, the
    first `candidates` of a query, or more if topk needs them, are scored from these rows instead of the
    vectors in the index, which then need not be decodable.
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
        self._read_vectors = index.reconstruct_batch if stored is None else stored.take
        if stored is None:
            _number_rows(index)
        # FAISS can hardly divide a single query, so it gets one thread, and several queries run at once.
        self._threads = ThreadPoolExecutor(
            threads or os.cpu_count() or 1, "faiss", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """Return at most `topk` hits for each query, best first."""
        return list(self._threads.map(lambda query: self._find_one(query, topk), queries))

    def close(self) -> None:
        """End the threads. No search may be running."""
        self._threads.shutdown()

    def _find_one(self, query: np.ndarray, topk: int) -> list[Hit]:
        """Return the hits of one query, (dimension,)."""

        def search(depth: int) -> list[Hit]:
            _, rows = self._index.search(query[None], depth)
            return _rescore(self._read_vectors, query, rows[0])

        return search_nested(search, topk, self._index.ntotal, self._candidates)


class GpuSearch:
    """Searches (queries, dimension) vectors with a `copy` on GPUs, and scores with `index` in main memory."""

    def __init__(self, copy: faiss.Index, index: faiss.Index):
        self._copy, self._index = copy, index
        _number_rows(index)

    def find(self, queries: np.ndarray, topk: int) -> list[list[Hit]]:
        """Return at most `topk` hits for each query, best first, and never more than 2,048."""

        @cache
        def candidates(depth: int) -> np.ndarray:
            return self._copy.search(queries, depth)[1]

        def search(i: int, depth: int) -> list[Hit]:
            return _rescore(self._index.reconstruct_batch, queries[i], candidates(depth)[i])

        limit = min(self._index.ntotal, _GPU_MAX_HITS)
        return [search_nested(partial(search, i), topk, limit) for i in range(len(queries))]

    def close(self) -> None:
        """Do nothing: the copy is released with its last reference."""


#: The kinds of search that `open_search` returns.
Search = FlatSearch | ApproximateSearch | GpuSearch


def _number_rows(index: faiss.Index) -> None:
    """Add a table from rows to positions in the cells to an IVF index. It takes 8 bytes per passage."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.make_direct_map(True)


def _rescore(read_vectors: VectorReader, query: np.ndarray, rows: np.ndarray) -> list[Hit]:
    """Return the candidates `rows` by the exact scores of their vectors, equal scores in corpus order."""
    rows = np.sort(rows[rows >= 0])
    if not len(rows):
        return []
    exact = (read_vectors(rows).astype(np.float64) * query).sum(axis=1)
    return [Hit(int(rows[i]), float(exact[i])) for i in np.lexsort((rows, -exact))]


def open_search(
    index: faiss.Index,
    copy_to_gpus: Callable[[faiss.Index], faiss.Index] = lambda index: index,
    threads: int | None = None,
    alone: int | None = None,
) -> Search:
    """Return the search that fits the index. `copy_to_gpus` returns a copy on GPUs, or the index itself.

    In an exact index, `threads` is the number of threads among which the rows are divided for a batch, and
    `alone` the number for a single query (None: FAISS's default). In an approximate index, `threads` is the
    number of queries that are searched at once (None: one for each core).
    """
    copy = copy_to_gpus(index)
    if copy is not index:
        return GpuSearch(copy, index)
    return FlatSearch(index, threads, alone) if is_exact(index) else ApproximateSearch(index, threads)
