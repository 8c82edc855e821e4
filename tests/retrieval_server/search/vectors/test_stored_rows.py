"""A compressed index with rescoring finds what exact search of the stored rows finds among its candidates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.indexing.faiss_build import make_index
from retrieval_server.search.backends import Hit
from retrieval_server.search.vectors import stored_rows
from retrieval_server.search.vectors.faiss_search import ApproximateSearch, FlatSearch, SearchParameters
from retrieval_server.search.vectors.stored_rows import StoredRows

DIMENSION, ROWS, QUERIES, CELLS = 32, 500, 12, 4
KINDS = ("float16", "int8")


@cache
def vectors() -> np.ndarray:
    arrays = np.random.default_rng(0).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    arrays[50:60] = arrays[49]  # copies: equal scores
    return arrays / np.linalg.norm(arrays, axis=1, keepdims=True)


@cache
def queries() -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal((QUERIES, DIMENSION))
    return (vectors()[45 : 45 + QUERIES] + 0.1 * noise).astype(np.float32)


@cache
def compressed(bits: int) -> faiss.Index:
    index = make_index(f"RR{DIMENSION},IVF{CELLS},RaBitQ{'' if bits == 1 else bits}", DIMENSION)
    index.train(vectors())
    index.add(vectors())
    SearchParameters(nprobe=CELLS).apply(index)
    return index


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")

    def file(kind: str) -> Path:
        path = folder / kind
        path.write_bytes(RowLayout(DIMENSION, kind).encode(vectors()))
        return path

    return file


@pytest.fixture(scope="module")
def opened(rows_file):
    """opened(kind): the stored rows, and exact search over what they decode to."""

    @cache
    def both(kind: str) -> tuple[StoredRows, FlatSearch]:
        stored = StoredRows(rows_file(kind), RowLayout(DIMENSION, kind), ROWS)
        flat = faiss.IndexFlatIP(DIMENSION)
        flat.add(stored.take(np.arange(ROWS)))
        return stored, FlatSearch(flat)

    return both


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(st.integers(0, QUERIES - 1), min_size=1, max_size=8), topk=st.integers(1, 60))
def test_with_all_rows_as_candidates_it_is_exact_search(opened, bits, kind, batch, topk):
    stored, exact = opened(kind)
    search = ApproximateSearch(compressed(bits), threads=1, stored=stored, candidates=ROWS)
    assert search.find(queries()[batch], topk) == exact.find(queries()[batch], topk)
    search.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(candidates=st.integers(10, ROWS), topk=st.integers(1, ROWS), number=st.integers(0, QUERIES - 1))
def test_a_shorter_list_is_the_beginning_of_a_longer_one(opened, candidates, topk, number):
    stored, _ = opened("int8")
    search = ApproximateSearch(compressed(1), threads=1, stored=stored, candidates=candidates)
    query = queries()[number : number + 1]
    (longest,) = search.find(query, ROWS)
    assert search.find(query, topk) == [longest[:topk]]
    assert sorted(hit.row for hit in longest) == list(range(ROWS)), "each row once"
    search.close()


def test_scores_are_those_of_the_stored_rows_and_not_of_the_codes(opened):
    stored, _ = opened("float16")
    search = ApproximateSearch(compressed(1), threads=1, stored=stored, candidates=50)
    for query, hits in zip(queries(), search.find(queries(), 5), strict=True):
        for hit in hits:
            row = stored.take(np.array([hit.row]))[0].astype(np.float64)
            assert hit == Hit(hit.row, float((row * query).sum()))
    search.close()


def test_more_candidates_find_more_of_what_exact_search_finds(opened):
    stored, exact = opened("float16")
    exact_rows = [{hit.row for hit in hits} for hits in exact.find(queries(), 10)]

    def number_found(candidates: int) -> int:
        search = ApproximateSearch(compressed(1), threads=1, stored=stored, candidates=candidates)
        hits = search.find(queries(), 10)
        search.close()
        return sum(len(rows & {hit.row for hit in some}) for rows, some in zip(exact_rows, hits, strict=True))

    assert number_found(18) < number_found(100) <= number_found(ROWS) == 10 * QUERIES


def test_rows_read_after_a_release_are_the_same(rows_file, monkeypatch):
    stored = StoredRows(rows_file("int8"), RowLayout(DIMENSION, "int8"), ROWS)
    whole = stored.take(np.arange(ROWS))
    monkeypatch.setattr(stored_rows, "RELEASE_AFTER", 3)
    again = [stored.take(np.array([row, row + 1])) for row in range(0, ROWS, 2)]
    assert (np.concatenate(again) == whole).all()


@pytest.mark.parametrize("kind, count", [("float16", ROWS - 1), ("float16", ROWS + 1), ("int8", 2 * ROWS)])
def test_a_file_of_other_rows_is_refused_with_both_sizes(rows_file, kind, count):
    with pytest.raises(UserError, match=f"{count} rows of {DIMENSION} dimensions in {kind}"):
        StoredRows(rows_file("float16"), RowLayout(DIMENSION, kind), count)
