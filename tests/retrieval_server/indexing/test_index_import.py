"""Indexes and embeddings from elsewhere: what FAISS finds in them, and what does not fit is refused."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval_server.build_index import main
from retrieval_server.errors import UserError
from retrieval_server.folder import hard_links
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.indexing import embedding_files, index_import
from retrieval_server.indexing.embedding_files import Embeddings
from retrieval_server.indexing.faiss_build import make_index
from retrieval_server.indexing.index_import import import_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.vectors.faiss_files import open_index, read_header, write_exact
from retrieval_server.search.vectors.faiss_search import SearchParameters

from ..builders import PASSAGES, RIVERS, TOWNS, dense_options, write_jsonl

QUERIES = [f"Which river is {town} on?" for town in TOWNS] + [f"barges on the {river}" for river in RIVERS]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> Path:
    """A corpus as Search-R1's wiki-18.jsonl: ids are row numbers."""
    rows = [{"id": str(i), "contents": row["contents"]} for i, row in enumerate(PASSAGES)]
    return write_jsonl(tmp_path_factory.mktemp("wiki") / "wiki-18.jsonl", rows)


@pytest.fixture(scope="module")
def vectors(encoder) -> np.ndarray:
    return encoder.encode_passages([row["contents"] for row in PASSAGES])


@pytest.fixture
def options_of(numbered, tiny_bge, tmp_path):
    """asked(**options): what to build of the numbered corpus."""

    def make(**more) -> BuildOptions:
        return dense_options(**{"corpus": numbered, "encoder": tiny_bge, "out": tmp_path / "i", **more})

    return make


def written(vectors: np.ndarray, factory: str, path: Path, metric: int = faiss.METRIC_INNER_PRODUCT) -> Path:
    """A FAISS file as the index builders of Search-R1 and FlashRAG write it."""
    index = faiss.index_factory(vectors.shape[1], factory, metric)
    index.train(vectors)
    if factory.startswith("IDMap"):
        index.add_with_ids(vectors, np.arange(len(vectors))[::-1].copy())
    else:
        index.add(vectors)
    faiss.write_index(index, str(path))
    return path


def warned(caplog) -> list[str]:
    """What the import has warned of."""
    return [record.getMessage() for record in caplog.records if record.name == index_import.__name__]


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "mapped"])
@pytest.mark.parametrize(
    "factory, kept, parameters",
    [
        ("Flat", "Flat", SearchParameters()),
        ("HNSW64", "HNSW64,Flat", SearchParameters(ef_search=64)),
        ("IVF4,Flat", "IVF4,Flat", SearchParameters(nprobe=2)),
    ],
)
def test_a_search_finds_what_faiss_finds_in_the_file(
    vectors, encoder, options_of, tmp_path, factory, kept, parameters, mapped
):
    source = written(vectors, factory, tmp_path / "e5_Flat.index")
    options = options_of(nprobe=parameters.nprobe, ef_search=parameters.ef_search)
    manifest = import_index(options, faiss_file=source)
    assert (manifest.dense.factory, manifest.count) == (kept, 20)
    assert manifest.dense.encoder == encoder.section
    direct = faiss.read_index(str(source))
    parameters.apply(direct)
    scores, rows = direct.search(encoder.encode_queries(QUERIES), 5)
    served = IndexSource.open(options.out, options=OpenOptions(device="cpu", mmap=mapped))
    results = served.search(QUERIES, 5)
    assert [[hit.passage.id for hit in hits] for hits in results] == rows.astype(str).tolist()
    assert [[hit.score for hit in hits] for hits in results] == [
        pytest.approx(each, abs=1e-5) for each in scores.tolist()
    ]
    assert results[0][0].passage.contents == PASSAGES[int(rows[0][0])]["contents"]


def test_the_file_is_linked_and_nothing_of_it_is_written_anew(vectors, options_of, tmp_path):
    source = written(vectors, "Flat", tmp_path / "e5_Flat.index")
    (tmp_path / "link.index").symlink_to(source)  # as the Hub's cache has it
    import_index(options_of(), faiss_file=tmp_path / "link.index")
    target = tmp_path / "i" / "faiss.index"
    assert os.path.samefile(source, target) and not target.is_symlink()


def test_where_a_file_cannot_be_linked_it_is_copied_in_blocks(vectors, options_of, tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuses)
    monkeypatch.setattr(hard_links, "_COPY_BLOCK_BYTES", 100)
    source = written(vectors, "Flat", tmp_path / "e5_Flat.index")
    import_index(options_of(), faiss_file=source)
    target = tmp_path / "i" / "faiss.index"
    assert target.read_bytes() == source.read_bytes() and not os.path.samefile(source, target)


def test_the_command_imports_and_says_how_to_serve(vectors, numbered, tiny_bge, tmp_path, capsys):
    source = written(vectors, "Flat", tmp_path / "e5_Flat.index")
    words = ["import", "--faiss", source, "--corpus", numbered, "--encoder", tiny_bge, "--device", "cpu"]
    assert main([*map(str, words), "--out", str(tmp_path / "i")]) == 0
    assert f"rag-r1 index serve --index {tmp_path / 'i'}" in capsys.readouterr().out
    assert read_manifest(tmp_path / "i").count == 20
    assert main([*map(str, words), "--out", str(tmp_path / "i")]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "factory, metric, rows, width, reason",
    [
        ("Flat", faiss.METRIC_INNER_PRODUCT, 19, 32, "19 rows.*20 passages"),
        ("Flat", faiss.METRIC_INNER_PRODUCT, 20, 40, "40 dimensions.*have 32"),
        ("Flat", faiss.METRIC_L2, 20, 32, "another metric"),
        ("IDMap,Flat", faiss.METRIC_INNER_PRODUCT, 20, 32, "IDMap"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    vectors, options_of, tmp_path, factory, metric, rows, width, reason
):
    others = np.pad(vectors[:rows], ((0, 0), (0, width - 32)))
    with pytest.raises(UserError, match=reason):
        import_index(options_of(), faiss_file=written(others, factory, tmp_path / "x.index", metric))
    assert not (tmp_path / "i").exists()


def test_ids_that_are_no_row_numbers_are_named_and_taken_on_request(
    corpus, vectors, options_of, tmp_path, caplog
):
    source = written(vectors, "Flat", tmp_path / "x.index")
    with pytest.raises(UserError, match="line 1: id 'town-0' in row 0.*--trust"):
        import_index(options_of(corpus=corpus), faiss_file=source)
    assert not (tmp_path / "i").exists()
    assert import_index(options_of(corpus=corpus), faiss_file=source, trust=True).count == 20
    assert not warned(caplog), "the vectors are right: nothing to warn of"


@pytest.mark.slow
def test_vectors_of_another_order_or_encoder_are_refused_and_taken_on_request(
    vectors, options_of, make_bert, tmp_path, caplog
):
    turned = written(vectors[::-1].copy(), "Flat", tmp_path / "turned.index")
    with pytest.raises(UserError, match="nearer to the vector of another row"):
        import_index(options_of(), faiss_file=turned)
    source = written(vectors, "Flat", tmp_path / "x.index")
    with pytest.raises(UserError, match="encoded again"):
        import_index(options_of(encoder=str(make_bert("bge-small-en-other", seed=7))), faiss_file=source)
    longer = written(3 * vectors, "Flat", tmp_path / "longer.index")
    with pytest.raises(UserError, match="lengths of about 3"):
        import_index(options_of(), faiss_file=longer)
    noise = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    noisy = vectors + 0.05 * noise
    noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
    with pytest.raises(UserError, match="cosine of 0.9"):
        import_index(options_of(), faiss_file=written(noisy, "Flat", tmp_path / "noisy.index"))
    assert not (tmp_path / "i").exists() and not warned(caplog)
    assert import_index(options_of(), faiss_file=turned, trust=True).count == 20
    assert "accepted all the same" in caplog.text


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_cut_download_is_named_before_faiss_reads_it(vectors, tmp_path, share):
    source = written(vectors, "Flat", tmp_path / "x.index")
    whole = source.read_bytes()
    source.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match="Fetch it again|fetch it again"):
        read_header(source)
    source.write_bytes(whole)
    assert read_header(source).rows == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory", ["Flat", "HNSW8", "IVF4,Flat", "SQ8", "PQ4x4", "IVF4,SQ8", "OPQ4_8,IVF4,PQ4x4"]
)
def test_a_header_says_what_faiss_says(factory, tmp_path):
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    source = written(vectors, factory, tmp_path / "x.index")
    header, index = read_header(source), faiss.read_index(str(source))
    assert (header.dimension, header.rows, header.trained) == (index.d, index.ntotal, index.is_trained)
    assert header.metric == index.metric_type == faiss.METRIC_INNER_PRODUCT
    mapped = open_index(source, mapped=True)
    for results, expected in zip(mapped.search(vectors[:9], 5), index.search(vectors[:9], 5), strict=True):
        assert results.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "contents", [b"", b"IxFI", b"version https://git-lfs.github.com/spec/v1\n" * 3, b"IBxF" + bytes(60)]
)
def test_what_is_no_index_of_float_vectors_is_named(tmp_path, contents):
    (tmp_path / "x.index").write_bytes(contents)
    with pytest.raises(UserError, match="not a readable FAISS index"):
        open_index(tmp_path / "x.index")
    for name, reason in (("nothing.index", "nothing.index"), ("/dev/null", "null: no ordinary file")):
        with pytest.raises(UserError, match=reason):
            read_header(tmp_path / name)


def test_a_header_that_promises_more_than_the_file_holds_costs_no_memory(vectors, tmp_path):
    source = written(vectors, "Flat", tmp_path / "x.index")
    whole = bytearray(source.read_bytes())
    whole[8:16] = struct.pack("<q", 2**40)
    source.write_bytes(whole)
    with pytest.raises(UserError, match="It is cut off"):
        open_index(source)


def test_an_exact_index_written_in_blocks_has_faisss_own_bytes(vectors, tmp_path):
    expected = written(vectors, "Flat", tmp_path / "faiss.index")
    write_exact([vectors[:7], vectors[7:]], 20, 32, tmp_path / "ours.index")
    assert (tmp_path / "ours.index").read_bytes() == expected.read_bytes()


def saved(vectors: np.ndarray, form: str, path: Path) -> Path:
    """The vectors in one of the forms; ``.memmap16`` is a bare file of 16 bits."""
    if form == ".npy":
        np.save(path.with_suffix(form), vectors)
    elif form == ".fbin":
        path.with_suffix(form).write_bytes(struct.pack("<ii", *vectors.shape) + vectors.tobytes())
    elif form == ".memmap16":
        path.with_suffix(".memmap").write_bytes(vectors.astype(np.float16).tobytes())
    else:
        path.with_suffix(form).write_bytes(vectors.tobytes())
    return next(path.parent.glob(f"{path.stem}.*"))


@pytest.mark.slow
@pytest.mark.parametrize("form", [".npy", ".fbin", ".memmap", ".f32", ".raw", ".memmap16"])
def test_embeddings_of_every_form_become_the_index_of_their_vectors(
    vectors, encoder, options_of, tmp_path, form, monkeypatch
):
    monkeypatch.setattr(index_import, "_BLOCK_ROWS", 8)
    cut = [saved(vectors[:9], form, tmp_path / "a"), saved(vectors[9:], form, tmp_path / "b")]
    manifest = import_index(options_of(), embeddings=cut)
    index = faiss.read_index(str(tmp_path / "i" / "faiss.index"))
    stored = vectors.astype(np.float16) if form == ".memmap16" else vectors
    assert manifest.dense.factory == "Flat"
    assert index.reconstruct_n(0, 20).tolist() == stored.astype(np.float32).tolist()
    (hits,) = IndexSource.open(tmp_path / "i", device="cpu").search(["Ulm"], 1)
    expected = np.argmax(stored.astype(np.float32) @ encoder.encode_queries(["Ulm"])[0])
    assert hits[0].passage.id == str(expected)


def test_embeddings_can_become_any_index(vectors, options_of, tmp_path):
    path = saved(vectors, ".npy", tmp_path / "a")
    manifest = import_index(options_of(factory="HNSW8", ef_search=32), embeddings=[path])
    assert manifest.dense.factory == "HNSW8" and manifest.dense.search.ef_search == 32
    assert make_index("HNSW8", 32).d == open_index(tmp_path / "i" / "faiss.index").d


@pytest.mark.parametrize(
    "name, contents, reason",
    [
        ("a.npy", None, r"\(20,\)"),
        ("a.npy", b"", "magic string"),
        ("a.npy", b"\x93NUMPY\1\0004\0{'descr':'f4','fortran_order':False,'shape':(-9,32)}", "mapped length"),
        ("a.npy", b"PK\x05\x06" + bytes(18), "magic string"),  # an empty .npz
        ("a.npy", b"\x93NUMPY\1\0\5\0{'de(", "Fetch or write it again"),
        ("a.fbin", struct.pack("<ii", 20, 32) + bytes(60), "do not take 68 bytes"),
        ("a.fbin", b"", "a.fbin"),
        ("a.raw", bytes(65), "not whole vectors"),
        ("a.raw", b"", "not whole vectors"),
        ("a.npz", b"PK", "must end in one of"),
    ],
)
def test_files_that_are_no_embeddings_are_named(tmp_path, name, contents, reason):
    path = tmp_path / name
    path.write_bytes(contents) if contents is not None else np.save(path, np.zeros(20, np.float32))
    with pytest.raises(UserError, match=reason):
        Embeddings([path], 32)


def test_pickled_embeddings_are_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="Python objects"):
        Embeddings([tmp_path / "a.npy"], 32)


@pytest.mark.parametrize(
    "rows, form, reason",
    [
        (np.s_[:19], ".npy", "19 vectors.*20 *passages"),
        (np.s_[:19], ".raw", "19 vectors"),
        (np.s_[:, :16], ".npy", "16 dimensions.*have 32"),
    ],
)
def test_embeddings_that_do_not_fit_the_corpus_are_refused(vectors, options_of, tmp_path, rows, form, reason):
    with pytest.raises(UserError, match=reason):
        import_index(options_of(), embeddings=[saved(vectors[rows].copy(), form, tmp_path / "a")])
    assert not (tmp_path / "i").exists()


def test_embeddings_that_are_no_numbers_are_refused_with_their_row(vectors, options_of, tmp_path):
    broken = vectors.copy()
    broken[13, 3] = np.nan
    with pytest.raises(UserError, match="row 13"):
        import_index(options_of(), embeddings=[saved(broken, ".npy", tmp_path / "d")])
    assert not (tmp_path / "i").exists()


def test_a_slice_of_several_files_is_the_slice_of_the_whole(vectors, tmp_path):
    parts = [saved(vectors[a:b], ".npy", tmp_path / f"{a}-{b}") for a, b in ((0, 6), (6, 6), (6, 20))]
    whole = Embeddings(parts, 32)
    assert len(whole) == 20
    for start, stop in ((0, 20), (5, 7), (6, 6), (0, 6), (6, 20), (19, 40)):
        assert whole[start:stop].tolist() == vectors[start:stop].tolist()
    assert whole.take(np.array([19, 0, 6])).tolist() == vectors[[19, 0, 6]].tolist()


def test_every_form_that_is_promised_is_read():
    forms = {line.partition("`.")[2].partition("`")[0] for line in embedding_files.__doc__.splitlines()}
    assert {f".{form}" for form in forms if form} <= set(embedding_files._SUFFIXES)


def test_an_import_that_was_interrupted_starts_over(vectors, options_of, numbered, tmp_path):
    left = tmp_path / "i.building"
    left.mkdir()
    shutil.copy(numbered, left / "faiss.index")
    import_index(options_of(), faiss_file=written(vectors, "Flat", tmp_path / "x.index"))
    assert json.loads((tmp_path / "i" / "manifest.json").read_text())["count"] == 20 and not left.exists()
