"""Every FAISS factory: hits that depend on the query alone, in rows of the corpus."""

from __future__ import annotations

from functools import cache

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.indexing.faiss_build import make_index
from retrieval_server.search.backends import Hit, search_nested
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.vectors.faiss_search import (
    ApproximateSearch,
    FlatSearch,
    GpuSearch,
    SearchParameters,
    open_search,
)
from retrieval_server.search.vectors.gpu import place_on_gpus

FACTORIES = "Flat SQ8 PQ4x4 PQ8x4fs HNSW8 HNSW8_SQ8 IVF8,Flat IVF8_HNSW4,Flat IVF8,SQ8 IVF8,PQ4x4".split()
FACTORIES += ["IVF8,PQ8x4fs", "OPQ4_8,IVF8,PQ4x4", "IVF8,PQ4x4,RFlat"]
DIMENSION, PASSAGES, QUERIES = 16, 600, 24


@cache
def passages() -> np.ndarray:
    vectors = np.random.default_rng(0).standard_normal((PASSAGES, DIMENSION)).astype(np.float32)
    vectors[50:90] = vectors[49]  # copies: equal scores, and near ones for each rounding
    return vectors


@cache
def queries() -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal((QUERIES, DIMENSION))
    return (passages()[30 : 30 + QUERIES] + 0.3 * noise).astype(np.float32)


@cache
def opened(factory: str):
    index = make_index(factory, DIMENSION)
    index.train(passages())
    index.add(passages())
    return open_search(index)


@cache
def alone(factory: str, topk: int) -> list[list[Hit]]:
    return [opened(factory).find(query[None], topk)[0] for query in queries()]


@pytest.mark.slow
@pytest.mark.parametrize("factory", FACTORIES)
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(batch=st.lists(st.integers(0, QUERIES - 1), min_size=1, max_size=40), topk=st.integers(1, 60))
def test_hits_depend_neither_on_the_batch_nor_on_topk(factory, batch, topk):
    results = opened(factory).find(queries()[batch], topk)
    assert results == [alone(factory, 60)[i][:topk] for i in batch]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_topk_above_the_corpus_gives_each_row_at_most_once_and_no_row_of_minus_one(factory):
    for hits in opened(factory).find(queries()[:3], 10 * PASSAGES):
        rows = [hit.row for hit in hits]
        assert 0 < len(rows) == len(set(rows)) <= PASSAGES
        assert 0 <= min(rows) and max(rows) < PASSAGES
        assert all(type(hit.row) is int and type(hit.score) is float for hit in hits)


@pytest.mark.parametrize("factory", FACTORIES)
def test_most_of_what_exact_search_finds_is_found(factory):
    index = opened(factory)._index
    if "IVF" in factory:
        SearchParameters(nprobe=8).apply(index)
    exact = np.argsort(-queries() @ passages().T, axis=1, kind="stable")[:, :10]
    results = open_search(index).find(queries(), 10)
    shared = sum(
        len({hit.row for hit in hits} & set(row)) for hits, row in zip(results, exact.tolist(), strict=True)
    )
    if "IVF" in factory:
        SearchParameters(nprobe=1).apply(index)
    assert shared / exact.size > (0.2 if "PQ" in factory else 0.9)


def test_equal_scores_stand_in_corpus_order():
    for factory in ("SQ8", "IVF8,Flat", "HNSW8"):
        (hits,) = opened(factory).find(passages()[49][None], 20)
        copies = [hit.row for hit in hits if 49 <= hit.row < 90]
        assert len(copies) > 5 and copies == sorted(copies)


def test_only_flat_is_searched_exactly():
    kinds = {factory: type(opened(factory)) for factory in FACTORIES}
    assert kinds.pop("Flat") is FlatSearch
    assert set(kinds.values()) == {ApproximateSearch}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 30), unique=True), st.integers(1, 40), st.integers(1, 40))
def test_a_shorter_list_is_the_beginning_of_a_longer_one(order, topk, more):
    """Whatever the index answers at each depth: here each answer is turned round."""

    def search(depth):
        return [Hit(row, 0.0) for row in order[:depth][:: (-1) ** depth]]

    short, long = (search_nested(search, k, len(order), first_depth=10) for k in (topk, topk + more))
    assert short == long[:topk] and len(short) == min(topk, len(order))
    assert len({hit.row for hit in long}) == len(long)


@pytest.mark.parametrize("first_depth", [1, 5, 7, 8])
def test_the_border_of_a_short_first_call_is_ignored_too(first_depth):
    def search(depth):
        return [Hit(row, 0.0) for row in (range(depth) if depth > 8 else reversed(range(depth)))]

    hits = search_nested(search, topk=12, total=1000, first_depth=first_depth)
    assert [hit.row for hit in hits] == list(range(12))


def test_search_settings_reach_every_kind_of_index_that_has_them():
    ivf = make_index("OPQ4_8,IVF8,PQ4x4", DIMENSION)
    SearchParameters(nprobe=5).apply(ivf)
    assert faiss.extract_index_ivf(ivf).nprobe == 5
    hnsw = make_index("HNSW8", DIMENSION)
    SearchParameters(ef_search=99).apply(hnsw)
    assert hnsw.hnsw.efSearch == 99


def listed(index: faiss.Index) -> int:
    """Candidates of the graph over the cells."""
    return faiss.downcast_index(index.quantizer).hnsw.efSearch


@pytest.mark.parametrize("compressed", [False, True])
def test_the_graph_over_the_cells_has_the_list_that_was_asked_for(compressed):
    index = make_index("IVF4_HNSW4,Flat", DIMENSION)
    SearchParameters(nprobe=2, ef_search=512).apply(index, compressed=compressed)
    assert listed(index) == 512


def test_without_a_wish_only_a_compressed_index_looks_at_more_cells_than_its_file_says():
    index = make_index("IVF256_HNSW4,Flat", DIMENSION)
    default = listed(index)
    SearchParameters(nprobe=100).apply(index)
    assert listed(index) == default
    for nprobe, looked_at in ((1, 64), (100, 200)):
        SearchParameters(nprobe=nprobe).apply(index, compressed=True)
        assert listed(index) == looked_at


@pytest.mark.parametrize(
    "factory, parameters, flag",
    [
        ("Flat", SearchParameters(nprobe=4), "--nprobe 4"),
        ("HNSW8", SearchParameters(nprobe=4), "--nprobe 4"),
        ("IVF8,Flat", SearchParameters(ef_search=40), "--ef-search 40"),
    ],
)
def test_a_setting_that_the_index_does_not_have_is_refused(factory, parameters, flag):
    with pytest.raises(UserError, match=flag):
        parameters.apply(make_index(factory, DIMENSION))


def test_a_copy_chooses_candidates_and_the_index_in_memory_scores_them():
    """What a GPU does, with a second index in its place: 16-bit vectors there, exact scores from here."""
    index = faiss.IndexFlatIP(DIMENSION)
    copy = make_index("SQfp16", DIMENSION)
    for each in (index, copy):
        each.train(passages())
        each.add(passages()[100:])
    search, exact = open_search(index, lambda _: copy), FlatSearch(index)
    assert type(search) is GpuSearch
    assert search.find(queries(), 20) == exact.find(queries(), 20)
    assert [len(hits) for hits in search.find(queries(), 9999)] == [PASSAGES - 100] * QUERIES


@pytest.mark.skipif(hasattr(faiss, "GpuMultipleClonerOptions"), reason="faiss-gpu is installed")
def test_without_a_gpu_the_index_stays_and_an_explicit_request_is_refused():
    index = faiss.IndexFlatIP(DIMENSION)
    assert place_on_gpus(index, OpenOptions(gpu="auto")) is index
    assert place_on_gpus(index, OpenOptions(gpu="off")) is index
    with pytest.raises(UserError, match="--gpu on.*faiss-gpu.*--gpu auto"):
        place_on_gpus(index, OpenOptions(gpu="on"))
