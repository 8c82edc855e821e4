"""Exact search in parts: what is found does not depend on how many there are, nor on the batch."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.search.options import OpenOptions
from retrieval_server.search.vectors import flat_search
from retrieval_server.search.vectors.flat_search import FlatSearch

DIMENSION = 8


@pytest.fixture(autouse=True, scope="module")
def small_parts():
    """Parts of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_search, "_MIN_PART_VALUES", 4 * DIMENSION)
        yield


def flat(vectors) -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def search_in_parts(vectors, queries, topk, **threads):
    search = FlatSearch(flat(vectors), **threads)
    try:
        return search.find(queries, topk)
    finally:
        search.close()


@given(
    rows=st.lists(st.integers(0, 5), max_size=40),
    queries=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    threads=st.integers(2, 7),
    topk=st.integers(1, 50),
)
def test_parts_find_what_the_whole_finds(rows, queries, threads, topk):
    """Few different vectors: many equal scores, within a part and across its ends."""
    known = np.random.default_rng(0).standard_normal((6, DIMENSION)).astype(np.float32)
    vectors = known[np.array(rows, int)]
    expected = search_in_parts(vectors, known[queries], topk, threads=1)
    assert search_in_parts(vectors, known[queries], topk, threads=threads) == expected
    for hits, query in zip(expected, known[queries], strict=True):
        exact = (vectors.astype(np.float64) * query).sum(axis=1)
        assert [hit.row for hit in hits] == np.lexsort((np.arange(len(rows)), -exact))[:topk].tolist()


@pytest.mark.parametrize("alone, together, parts", [(None, 3, (3, 3)), (1, 3, (1, 3)), (5, 2, (5, 2))])
def test_one_query_and_a_batch_have_their_own_numbers_of_parts(alone, together, parts):
    vectors = np.random.default_rng(0).standard_normal((100, DIMENSION)).astype(np.float32)
    searches = []

    class Watched:
        """Remembers the parts of a search."""

        ntotal, d = vectors.shape

        def __init__(self):
            self.index = flat(vectors)

        def search(self, queries, depth, params=None):
            searches.append(params)
            return self.index.search(queries, depth, params=params)

        def reconstruct_batch(self, rows):
            return self.index.reconstruct_batch(rows)

    search = FlatSearch(Watched(), together, alone)
    for size, number in zip((1, 4), parts, strict=True):
        searches.clear()
        search.find(vectors[:size], 3)
        assert len(searches) == number
    search.close()


def test_a_small_index_is_not_divided(monkeypatch):
    monkeypatch.setattr(flat_search, "_MIN_PART_VALUES", 2**20)
    assert flat_search._parts(flat(np.zeros((1000, DIMENSION), np.float32)), 8) == [None]


def test_the_number_of_threads_is_faisss_own_unless_it_is_given(monkeypatch):
    assert OpenOptions().search_threads is None
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 3)
    search = FlatSearch(flat(np.zeros((1000, DIMENSION), np.float32)))
    assert len(search._batch_parts) == len(search._single_parts) == 3
    search.close()


def test_one_query_is_compared_vector_by_vector_and_a_batch_by_a_matrix_product(monkeypatch):
    """FAISS takes its matrix product for batches whose size, or size x dimension, reaches the threshold.

    It is that of the largest dimension that was opened."""
    before = faiss.cvar.distance_compute_blas_threshold
    monkeypatch.setattr(flat_search, "_largest_dimension", 0)
    for dimension, largest in ((DIMENSION, DIMENSION), (16, 16), (DIMENSION, 16)):
        FlatSearch(flat(np.zeros((10, dimension), np.float32))).close()
        expected = 2 * (largest if flat_search._BY_PRODUCT else 1)
        assert faiss.cvar.distance_compute_blas_threshold == expected
    faiss.cvar.distance_compute_blas_threshold = before


def test_rows_that_faiss_did_not_find_are_dropped():
    class Filler:
        """What FAISS answers when it finds fewer than topk."""

        ntotal, d = 3, 2

        def search(self, vectors, topk, params=None):
            return np.array([[0.5, 0.1, -np.inf]], np.float32), np.array([[2, 0, -1]])

        def reconstruct_batch(self, rows):
            return np.array([[row, 0.25] for row in rows], np.float32)

    (hits,) = FlatSearch(Filler()).find(np.array([[1.0, 1.0]], np.float32), 3)
    assert [(hit.row, hit.score) for hit in hits] == [(2, 2.25), (0, 0.25)]


def test_hits_do_not_depend_on_the_batch_and_equal_scores_stand_in_corpus_order():
    """FAISS rounds differently for each batch size: 40 almost equal passages would change places."""
    generator = np.random.default_rng(0)
    centre = generator.standard_normal(64)
    vectors = centre + 1e-6 * generator.standard_normal((40, 64))
    vectors = np.concatenate([vectors, generator.standard_normal((500, 64))]).astype(np.float32)
    vectors[7] = vectors[3]
    index = faiss.IndexFlatIP(64)
    index.add(vectors)
    backend = FlatSearch(index, threads=3)
    queries = (centre + 0.1 * generator.standard_normal((60, 64))).astype(np.float32)
    alone = [backend.find(query[None], 40)[0] for query in queries]
    for size in (2, 7, 60):
        together = [hits for i in range(0, 60, size) for hits in backend.find(queries[i : i + size], 40)]
        assert together == alone
    assert all(wide[:5] == narrow for wide, narrow in zip(alone, backend.find(queries, 5), strict=True))
    for hits in alone:
        rows = [hit.row for hit in hits]
        assert rows.index(7) == rows.index(3) + 1
