from __future__ import annotations

import faiss
import numpy as np
import pytest

from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import RecallRow, read_manifest
from retrieval_server.folder.passages import Passage, PassageStore, PassageWriter
from retrieval_server.indexing import faiss_recall
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.checks import check_factory
from retrieval_server.indexing.faiss_build import (
    MIN_TRAINING_VECTORS,
    faiss_message,
    make_index,
    write_faiss_index,
)
from retrieval_server.indexing.faiss_recall import choose_default, recall_warning, sample_queries
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.vectors.faiss_search import SearchParameters

from ..builders import build, dense_options


@pytest.fixture(scope="module")
def ivf(corpus, tiny_bge, tmp_path_factory):
    out = tmp_path_factory.mktemp("ivf") / "index"
    return build(corpus, out, "dense", encoder=str(tiny_bge), factory="IVF4,Flat")


def test_the_table_of_recall_is_printed_and_kept_with_the_default_that_it_gives(
    corpus, tiny_bge, tmp_path, capsys
):
    manifest = build_index(dense_options(corpus, tiny_bge, tmp_path / "i", factory="IVF4,Flat"))
    section = read_manifest(tmp_path / "i").dense
    assert section == manifest.dense
    rows = section.recall.rows
    assert [row.nprobe for row in rows] == [1, 2, 4]
    assert [row.recall for row in rows] == sorted(row.recall for row in rows)
    assert rows[-1].recall == 1.0, "all cells looked into"
    assert section.search.nprobe == next(row.nprobe for row in rows if row.recall >= 0.95)
    assert (section.recall.queries, section.recall.source) == (20, "first sentences of passages")
    printed = capsys.readouterr().out
    assert "recall@10" in printed and "100.0%" in printed


def test_queries_of_a_file_and_settings_that_are_named_are_kept(corpus, tiny_bge, tmp_path):
    queries = tmp_path / "q.txt"
    queries.write_text("Where is\u2028Ulm?\n\nbarges\n")
    more = {"factory": "HNSW4", "ef_search": 50, "recall_queries": queries}
    section = build_index(dense_options(corpus, tiny_bge, tmp_path / "i", **more)).dense
    assert (section.recall.queries, section.recall.source) == (2, "q.txt")
    assert section.search.ef_search == 50 and 50 in [row.ef_search for row in section.recall.rows]


def test_the_exact_index_needs_no_table(corpus, tiny_bge, tmp_path):
    section = build_index(dense_options(corpus, tiny_bge, tmp_path / "i")).dense
    assert section.recall is None and section.search is None


def test_all_cells_of_an_ivf_index_give_what_flat_gives(ivf, dense_index):
    flat = IndexSource.open(dense_index, device="cpu")
    all_cells = IndexSource.open(ivf, options=OpenOptions(device="cpu", nprobe=4))
    questions = ["Which river lies Ulm on?", "", "timber"]
    assert all_cells.search(questions, 50) == flat.search(questions, 50)


def test_a_string_that_faiss_does_not_take_is_refused_before_the_corpus_is_read(corpus, tiny_bge, tmp_path):
    for factory in ("Nonsense", "IVF4,", "LSH", "IDMap,Flat"):
        with pytest.raises(UserError, match=factory):
            build_index(dense_options(tmp_path / "no corpus", tiny_bge, tmp_path / "i", factory=factory))
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_too_small_for_the_factory_is_refused_with_both_numbers(corpus, tiny_bge, tmp_path):
    with pytest.raises(UserError, match="IVF64,Flat: 64 cells.*20 passages"):
        build_index(dense_options(corpus, tiny_bge, tmp_path / "i", factory="IVF64,Flat"))
    with pytest.raises(UserError, match="--nprobe 9: the index has 4 cells: give at most 4"):
        build_index(dense_options(corpus, tiny_bge, tmp_path / "i", factory="IVF4,Flat", nprobe=9))
    assert not (tmp_path / "i").exists()


def test_a_byte_order_mark_is_no_part_of_the_first_recall_query(tmp_path):
    (tmp_path / "queries.txt").write_text("Who?\nWhere?\n", encoding="utf-8-sig")
    assert faiss_recall.read_queries(tmp_path / "queries.txt") == ["Who?", "Where?"]
    with pytest.raises(UserError, match="null: no ordinary file"):
        faiss_recall.read_queries(tmp_path / "/dev/null")


def test_recall_queries_of_an_exact_index_or_an_empty_file_are_refused(corpus, tiny_bge, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    for factory, reason in (("Flat", "exact"), ("SQ8", "no query in it")):
        options = dense_options(corpus, tiny_bge, tmp_path / "i", factory=factory, recall_queries=empty)
        with pytest.raises(UserError, match=f"--recall-queries.*{reason}"):
            build_index(options)


def test_training_sees_a_bounded_sample(tmp_path):
    """Vectors 0, 1, 2, ... of one dimension: the range that SQ8 learns tells what it was trained on."""
    np.arange(1000, dtype=np.float32).tofile(tmp_path / "v")
    vectors = VectorFiles([tmp_path / "v"], 1)
    write_faiss_index(vectors, "SQ8", tmp_path / "all")
    write_faiss_index(vectors, "SQ8", tmp_path / "some", train_sample=3)
    whole, some = (faiss.read_index(str(tmp_path / name)) for name in ("all", "some"))
    assert faiss.vector_to_array(whole.sq.trained).tolist() == [0, 999]
    assert faiss.vector_to_array(some.sq.trained)[1] < 999
    assert MIN_TRAINING_VECTORS >= 256 * 256, (
        "all that FAISS uses for the 256 centroids of a product quantiser"
    )


@pytest.mark.parametrize(
    "factory",
    "Flat SQ8 PQ96 PQ128 PQ128x4fs PQ256 PQ384 IVF4096,PQ128 OPQ7_14,PQ14x4 PRQ7x2x4 PQ6,RFlat".split(),
)
def test_a_factory_string_that_fits_some_dimension_passes_the_check(factory):
    check_factory(factory)


@pytest.mark.parametrize("factory", ["Flatt", "PQ0", "PQ8x25", "OPQ7_64,PQ96", "PQ9967,RFlat,PQ9973"])
def test_a_factory_string_that_fits_no_dimension_is_refused_before_the_encoder_is_loaded(factory):
    with pytest.raises(UserError, match=f"--factory {factory}: FAISS makes no"):
        check_factory(factory)


def test_an_index_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="bad_alloc"):
        make_index("PQ8x24", 1 << 30)
    (tmp_path / "v").write_bytes(bytes(16))
    monkeypatch.setattr(VectorFiles, "__getitem__", lambda *_: np.empty(1 << 60, np.uint8))
    with pytest.raises(UserError, match="1 vectors with their index do not fit into memory"):
        write_faiss_index(VectorFiles([tmp_path / "v"], 4), "Flat", tmp_path / "i")


def test_product_quantisers_are_not_reordered_for_a_search_that_is_not_used():
    assert make_index("PQ4", 16).do_polysemous_training is False
    inner = make_index("OPQ4_8,IVF8,PQ4", 16)
    assert faiss.downcast_index(faiss.extract_index_ivf(inner)).do_polysemous_training is False
    refined = make_index("IVF4,Flat,Refine(PQ8)", 16)
    assert faiss.downcast_index(refined.refine_index).do_polysemous_training is False
    assert faiss_message(MemoryError()) == "MemoryError"


@pytest.mark.parametrize("recalls", [(0.5, 0.96, 0.99), (0.5, 0.9, 0.8)])
def test_the_cheapest_good_setting_is_the_default_else_the_best(recalls):
    rows = [RecallRow(nprobe=2**i, recall=recall, ms=1.0) for i, recall in enumerate(recalls)]
    assert choose_default(rows) == SearchParameters(nprobe=2)


def test_sampled_queries_are_first_sentences_without_the_title(dense_index):
    queries = sample_queries(PassageStore(dense_index / "passages.arrow"))
    assert len(queries) == 20
    assert "Ulm is a town in the valley of the river Donau." in queries


def test_a_passage_whose_text_is_blank_is_asked_for_by_its_title(tmp_path):
    with PassageWriter(tmp_path / "passages.arrow") as writer:
        writer.add(Passage("1", '"Ulm"\n '), 1)
    assert sample_queries(PassageStore(tmp_path / "passages.arrow")) == ['"Ulm"']


def test_no_good_setting_is_told_with_the_best_one():
    def rows(*recalls, **setting):
        return [RecallRow(recall=recall, ms=1.0, **setting) for recall in recalls]

    assert recall_warning(rows(0.5, 0.95, nprobe=8)) is None
    message = recall_warning(rows(0.5, 0.9123, nprobe=1024), 0.97)
    assert "finds 97.0%" in message and "--nprobe 1024, with 91.2%" in message
    assert "--ef-search 512, with 50.0%" in recall_warning(rows(0.5, ef_search=512))
    assert "finds 50.0% of what exact search finds, less than 95.0%" in recall_warning(rows(0.5))


@pytest.mark.parametrize("nprobe, warned", [(None, True), (2, False)])
def test_a_build_warns_where_no_setting_is_good_unless_the_user_chose_one(
    corpus, tiny_bge, tmp_path, monkeypatch, capsys, nprobe, warned
):
    monkeypatch.setattr("retrieval_server.indexing.dense_build.GOOD_RECALL", 1.01)
    build_index(dense_options(corpus, tiny_bge, tmp_path / "i", factory="IVF4,Flat", nprobe=nprobe))
    assert ("warning: no setting that was tried" in capsys.readouterr().out) == warned
