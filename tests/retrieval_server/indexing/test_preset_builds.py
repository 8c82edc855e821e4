"""Builds with a preset, from corpus to answers: in one go, interrupted, in parts, imported, and in shards."""

from __future__ import annotations

import shutil

import faiss
import numpy as np
import pytest

from retrieval_server.cluster.merge import merge
from retrieval_server.encode import vector_files
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import FAISS_INDEX, MANIFEST, ROWS, read_manifest
from retrieval_server.folder.shard_set import read_shards
from retrieval_server.indexing.builder import build_index, merge_parts
from retrieval_server.indexing.index_import import import_index
from retrieval_server.indexing.parts import EncodingPart, encode_part
from retrieval_server.indexing.split_index import split_index
from retrieval_server.search.index_source import IndexSource

from ..builders import TOWNS, contents_without_times, dense_options, edit_json, parts_of, write_jsonl

QUERIES = [f"{town} is a town in the valley of a river." for town in TOWNS]


@pytest.fixture(scope="module")
def options(corpus, tiny_bge):
    """options(out, preset): those of a build with this preset."""
    return lambda out, preset: dense_options(corpus, tiny_bge, out, preset=preset)


def stops(*_, **__):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def built(options, tmp_path_factory):
    """made(preset): the folder of an index, built once."""
    folder = tmp_path_factory.mktemp("presets")

    def build(preset: str):
        if not (folder / preset).exists():
            build_index(options(folder / preset, preset))
        return folder / preset

    return build


@pytest.mark.parametrize("preset, rows", [("exact", None), ("balanced", "float16"), ("small", "int8")])
def test_the_manifest_names_the_preset_and_how_candidates_are_scored(built, preset, rows):
    section = read_manifest(built(preset)).dense
    assert section.preset == preset
    if rows is None:
        assert section.rescoring is None and section.factory == "Flat"
    else:
        assert section.rescoring.rows == rows and 100 <= section.rescoring.candidates <= 400
        assert section.factory.startswith("RR32,IVF1,RaBitQ")
        assert "vectors.rows" in read_manifest(built(preset)).files


@pytest.mark.parametrize("preset", ["balanced", "small"])
def test_a_small_corpus_is_searched_as_exactly_as_its_rows_allow(built, preset):
    """20 passages are all candidates: only the rounding of the rows is left."""
    sources = [IndexSource.open(built(name), device="cpu") for name in ("exact", preset)]
    exact, compressed = (source.search(QUERIES, 20) for source in sources)
    scores = [np.array([[hit.score for hit in hits] for hits in results]) for results in (exact, compressed)]
    assert scores[0].shape == (len(QUERIES), 20) and np.abs(scores[0] - scores[1]).max() < 0.02
    for source in sources:
        source.close()


def test_what_a_build_will_need_is_printed_before_it_encodes(options, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("retrieval_server.encode.vector_files.encode_rows", stops)
    with pytest.raises(KeyboardInterrupt):
        build_index(options(tmp_path / "i", "small"))
    printed = capsys.readouterr().out
    assert "20 passages of 32 dimensions, preset small: RR32,IVF1,RaBitQ" in printed
    assert "memory of a server" in printed and "disk" in printed


def test_a_build_with_another_preset_does_not_take_the_rows_of_the_first(
    options, built, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("retrieval_server.indexing.dense_build.write_faiss_index", stops)
        with pytest.raises(KeyboardInterrupt):
            build_index(options(tmp_path / "i", "small"))
    assert (tmp_path / "i.building" / "vectors.rows").exists()
    build_index(options(tmp_path / "i", "balanced"))
    assert contents_without_times(tmp_path / "i") == contents_without_times(built("balanced"))


@pytest.mark.parametrize("preset, kind", [("small", "int8"), ("small", "float32"), ("balanced", "float16")])
def test_an_index_of_parts_is_the_index_made_in_one_go(
    corpus, options, encoder, tmp_path, monkeypatch, preset, kind
):
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    build_index(options(tmp_path / "whole", preset))
    parts = parts_of(corpus, tmp_path / "parts", encoder, (2, 1), kind=kind)
    merge_parts(options(tmp_path / "i", preset), parts)
    assert contents_without_times(tmp_path / "i") == contents_without_times(tmp_path / "whole")


def test_parts_of_another_type_are_refused_with_both_remedies(corpus, options, encoder, tmp_path):
    parts_of(corpus, tmp_path / "parts", encoder, kind="int8")
    for preset in (None, "exact", "balanced"):
        with pytest.raises(UserError, match="encoded in int8.*--preset of encode"):
            merge_parts(options(tmp_path / "i", preset), tmp_path / "parts")
    with pytest.raises(UserError, match="another type .int8 instead of float32"):
        encode_part(tmp_path / "parts", EncodingPart(1, 1), encoder, progress=False)
    encode_part(tmp_path / "parts", EncodingPart(1, 1), encoder, overwrite=True, progress=False)
    assert sorted(path.suffix for path in (tmp_path / "parts").glob("part-*")) == [".f32", ".json"]


def test_embeddings_from_elsewhere_become_a_compressed_index(tiny_bge, encoder, tmp_path):
    texts = [f"{town} is a town." for town in TOWNS]
    rows = [{"id": str(i), "contents": text} for i, text in enumerate(texts)]
    corpus = write_jsonl(tmp_path / "c.jsonl", rows)
    np.save(tmp_path / "e.npy", encoder.encode_passages(texts))
    import_options = dense_options(corpus, tiny_bge, tmp_path / "i", preset="small")
    assert import_index(import_options, embeddings=[tmp_path / "e.npy"]).dense.preset == "small"
    source = IndexSource.open(tmp_path / "i", encodes=False)
    results = source.find(encoder.encode_passages(texts), [1] * len(texts))
    assert [hits[0].passage.contents for hits in results] == texts
    source.close()


@pytest.mark.parametrize("preset", ["balanced", "small"])
@pytest.mark.parametrize("shards", [1, 3])
def test_shards_together_answer_as_the_whole_where_all_passages_are_candidates(
    built, tmp_path, preset, shards
):
    split_index(built(preset), tmp_path / "parts", shards, progress=False)
    whole = IndexSource.open(built(preset), device="cpu")
    parts = [IndexSource.open(path, encodes=False) for path, _ in read_shards(tmp_path / "parts")]
    prepared = whole.prepare(QUERIES)
    for topk in (1, 20):
        topks = [topk] * len(QUERIES)
        results = [part.find_unrounded(prepared, topks) for part in parts]
        assert [merge(hits, topk) for hits in zip(*results, strict=True)] == whole.find(prepared, topks)
    for source in (whole, *parts):
        source.close()


def codes_of(folder, first: int = 0) -> dict[int, tuple[int, bytes]]:
    """Of each row of an index, ``first`` more than in its own file: its cell and its code."""
    index = faiss.read_index(str(folder / FAISS_INDEX))
    cells = faiss.extract_index_ivf(index)
    assert index.ntotal == cells.ntotal
    results = {}
    for cell in range(cells.nlist):
        if many := cells.invlists.list_size(cell):
            ids = faiss.rev_swig_ptr(cells.invlists.get_ids(cell), many).tolist()
            codes = faiss.rev_swig_ptr(cells.invlists.get_codes(cell), many * cells.code_size)
            rows = codes.reshape(many, -1)
            results |= {first + row: (cell, code.tobytes()) for row, code in zip(ids, rows, strict=True)}
    return results


@pytest.mark.parametrize("preset", ["balanced", "small"])
def test_shards_take_the_rows_and_the_codes_of_the_whole_with_them(built, tmp_path, preset):
    split_index(built(preset), tmp_path / "parts", 3, progress=False)
    shards = read_shards(tmp_path / "parts")
    codes: dict[int, tuple[int, bytes]] = {}
    for path, manifest in shards:
        codes |= codes_of(path, manifest.shard.first_row)
    whole = codes_of(built(preset))
    assert len(whole) == read_manifest(built(preset)).count and codes == whole
    rows = b"".join((path / ROWS).read_bytes() for path, _ in shards)
    assert rows == (built(preset) / ROWS).read_bytes()


def test_a_manifest_without_candidates_is_refused(built, tmp_path):
    folder = shutil.copytree(built("small"), tmp_path / "i")
    edit_json(folder / MANIFEST, lambda data: data["dense"]["rescoring"].update(candidates=0))
    with pytest.raises(UserError, match="dense.rescoring.candidates"):
        read_manifest(folder)
