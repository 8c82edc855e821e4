from __future__ import annotations

import gzip

import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.locks import exclusive_lock
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions

from ..builders import (
    PASSAGES,
    build,
    build_options,
    contents,
    contents_without_times,
    dense_options,
    edit_json,
    write_jsonl,
)


def test_the_manifest_says_what_was_built(dense_index, corpus, tiny_bge):
    manifest = read_manifest(dense_index)
    assert (manifest.backend, manifest.count, manifest.corpus.source) == ("dense", 20, corpus.name)
    encoder = manifest.dense.encoder
    assert (encoder.name, encoder.pooling, encoder.dimension) == (str(tiny_bge), "cls", 32)
    assert encoder.query_prefix == "Represent this sentence for searching relevant passages: "
    assert (manifest.dense.metric, manifest.dense.factory) == ("inner_product", "Flat")
    assert set(manifest.files) == {"passages.arrow", "faiss.index"}


def test_two_builds_give_the_same_bytes_and_gzip_the_same_corpus_hash(corpus, tmp_path):
    packed = tmp_path / "towns.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    first = build_index(build_options(corpus, tmp_path / "a"))
    assert contents(tmp_path / "a") == contents(build(corpus, tmp_path / "b"))
    assert build_index(build_options(packed, tmp_path / "c")).corpus.sha256 == first.corpus.sha256


def test_a_failed_build_leaves_nothing(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "contents": "x"}\n{"id": "1"}\n')
    with pytest.raises(UserError, match="line 2"):
        build(corpus, tmp_path / "i")
    assert list(tmp_path.iterdir()) == [corpus]


@pytest.mark.parametrize(
    "text, reason", [("", "no passage"), ("\n\n", "no passage"), ("{\n", "1 malformed row")]
)
def test_an_empty_corpus_is_an_error(tmp_path, text, reason):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(text)
    with pytest.raises(UserError, match=reason):
        build_index(build_options(corpus, tmp_path / "i", skip_bad_rows=True))


def test_duplicate_ids_are_refused_even_when_bad_rows_are_skipped(tmp_path):
    corpus = tmp_path / "c.tsv"
    corpus.write_text("a\tone\nbad row\na\ttwo\n")
    with pytest.raises(UserError, match="line 1 and .*line 3 have the same id 'a'"):
        build_index(build_options(corpus, tmp_path / "i", skip_bad_rows=True))


def test_skipped_rows_are_recorded(tmp_path):
    corpus = tmp_path / "c.tsv"
    corpus.write_text("a\tone\nbad row\nb\ttwo\n")
    manifest = build_index(build_options(corpus, tmp_path / "i", skip_bad_rows=True))
    assert (manifest.count, manifest.corpus.skipped_rows) == (2, 1)


def test_an_existing_index_is_replaced_only_on_request(corpus, tmp_path):
    out = tmp_path / "i"
    build(corpus, out)
    with pytest.raises(UserError, match="--overwrite"):
        build_index(build_options(corpus, out))
    other = tmp_path / "c.tsv"
    other.write_text("a\tone\n")
    assert read_manifest(build(other, out, overwrite=True)).count == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("i")] == ["i"]


def test_overwrite_does_not_touch_a_folder_that_is_no_index(corpus, tmp_path):
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not an index"):
        build_index(build_options(corpus, tmp_path / "i", overwrite=True))
    assert (tmp_path / "i" / "thesis.txt").exists()


def test_two_builds_of_one_index_at_once_are_refused(corpus, tmp_path):
    work = tmp_path / "i.building"
    work.mkdir()
    with exclusive_lock(work, "busy"), pytest.raises(UserError, match="another build"):
        build(corpus, tmp_path / "i")
    build(corpus, tmp_path / "i")


@pytest.fixture
def dense(corpus, tiny_bge, tmp_path) -> BuildOptions:
    return dense_options(corpus, tiny_bge, tmp_path / "i")


@pytest.mark.parametrize(
    "preset, file", [(None, "vectors.f32"), ("balanced", "vectors.rows"), ("small", "vectors.rows")]
)
def test_an_interrupted_build_goes_on_and_ends_in_the_same_bytes(
    corpus, tiny_bge, interrupted, tmp_path, preset, file
):
    options_ = dense_options(corpus, tiny_bge, tmp_path / "i", preset=preset)
    encoded = interrupted(options_)
    with (tmp_path / "i.building" / file).open("ab") as stream:
        stream.write(b"half a block")  # as a kill in the middle of a write leaves it
    build_index(options_)
    assert len(encoded) == 4
    whole = build(corpus, tmp_path / "whole", "dense", encoder=options_.encoder, preset=preset)
    assert contents_without_times(options_.out) == contents_without_times(whole)


def test_a_build_interrupted_before_a_setting_was_known_goes_on(dense, interrupted, tmp_path):
    def without_the_setting(recorded):
        for origin in recorded.values():
            assert origin["encoder"].pop("passage_dtype") is None

    encoded = interrupted(dense)
    edit_json(tmp_path / "i.building" / "progress.json", without_the_setting)
    build_index(dense)
    assert len(encoded) == 4


def test_vectors_of_another_corpus_are_not_taken_over(dense, interrupted, tmp_path):
    encoded = interrupted(dense)
    rows = [PASSAGES[0] | {"contents": PASSAGES[0]["contents"] + " Changed."}, *PASSAGES[1:]]
    build(write_jsonl(tmp_path / "changed.jsonl", rows), dense.out, "dense", encoder=dense.encoder)
    assert len(encoded) == 20


def test_what_another_kind_of_build_left_behind_is_not_published(dense, interrupted):
    interrupted(dense)
    names = " ".join(contents(build(dense.corpus, dense.out)))
    assert not any(word in names for word in ("vectors", "progress", "faiss"))
