from __future__ import annotations

import fcntl
import gzip
import json
import os

import pytest

from retrieval_server.encode import vector_files
from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import BuildError, CorpusError, IndexFolderError
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.index_source import IndexSource

from ..conftest import contents


def options(corpus, out, **more):
    return BuildOptions(**{"corpus": corpus, "out": out, "backend": "bm25", "progress": False, **more})


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
    first = build_index(options(corpus, tmp_path / "a"))
    build_index(options(corpus, tmp_path / "b"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert build_index(options(packed, tmp_path / "c")).corpus.sha256 == first.corpus.sha256


def test_a_failed_build_leaves_no_index(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "contents": "x"}\n{"id": "1"}\n')
    with pytest.raises(CorpusError, match="line 2"):
        build_index(options(corpus, tmp_path / "i"))
    assert not (tmp_path / "i").exists()
    with pytest.raises(IndexFolderError, match="no finished index"):
        IndexSource.open(tmp_path / "i.building")


@pytest.mark.parametrize(
    "text, reason", [("", "no passage"), ("\n\n", "no passage"), ("{\n", "1 malformed row")]
)
def test_an_empty_corpus_is_an_error(tmp_path, text, reason):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(text)
    with pytest.raises(CorpusError, match=reason):
        build_index(options(corpus, tmp_path / "i", skip_bad_rows=True))


def test_duplicate_ids_are_refused_even_when_bad_rows_are_skipped(tmp_path):
    corpus = tmp_path / "c.tsv"
    corpus.write_text("a\tone\nbad row\na\ttwo\n")
    with pytest.raises(CorpusError, match="line 1 and .*line 3 have the same id 'a'"):
        build_index(options(corpus, tmp_path / "i", skip_bad_rows=True))


def test_skipped_rows_are_recorded(tmp_path):
    corpus = tmp_path / "c.tsv"
    corpus.write_text("a\tone\nbad row\nb\ttwo\n")
    manifest = build_index(options(corpus, tmp_path / "i", skip_bad_rows=True))
    assert (manifest.count, manifest.corpus.skipped_rows) == (2, 1)


def test_an_existing_index_is_replaced_only_on_request(corpus, tmp_path):
    out = tmp_path / "i"
    build_index(options(corpus, out))
    with pytest.raises(BuildError, match="--overwrite"):
        build_index(options(corpus, out))
    other = tmp_path / "c.tsv"
    other.write_text("a\tone\n")
    build_index(options(other, out, overwrite=True))
    assert read_manifest(out).count == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("i")] == ["i"]


def test_overwrite_does_not_touch_a_folder_that_is_no_index(corpus, tmp_path):
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.txt").write_text("years of work")
    with pytest.raises(BuildError, match="not an index"):
        build_index(options(corpus, tmp_path / "i", overwrite=True))
    assert (tmp_path / "i" / "thesis.txt").exists()


def test_two_builds_of_one_index_at_once_are_refused(corpus, tmp_path):
    work = tmp_path / "i.building"
    work.mkdir()
    descriptor = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BuildError, match="another build"):
            build_index(options(corpus, tmp_path / "i"))
    finally:
        os.close(descriptor)
    build_index(options(corpus, tmp_path / "i"))


@pytest.fixture
def interrupted(corpus, tiny_bge, tmp_path, monkeypatch):
    """A dense build stopped in its third block of 8: its options, and the texts encoded from then on."""
    monkeypatch.setattr(vector_files, "BLOCK", 8)
    encode = Encoder.encode_passages
    encoded: list[str] = []

    def stops_at_the_third_block(self, passages, batch_size=64):
        if len(encoded) >= 16:
            raise KeyboardInterrupt
        if passages != ["probe"]:
            encoded.extend(passages)
        return encode(self, passages, batch_size)

    asked = options(corpus, tmp_path / "i", backend="dense", encoder=str(tiny_bge))
    monkeypatch.setattr(Encoder, "encode_passages", stops_at_the_third_block)
    with pytest.raises(KeyboardInterrupt):
        build_index(asked)
    assert not asked.out.exists() and len(encoded) == 16
    encoded.clear()

    def counting(self, passages, batch_size=64):
        if passages != ["probe"]:
            encoded.extend(passages)
        return encode(self, passages, batch_size)

    monkeypatch.setattr(Encoder, "encode_passages", counting)
    return asked, encoded


def test_an_interrupted_build_goes_on_and_ends_in_the_same_bytes(interrupted, tmp_path):
    asked, encoded = interrupted
    with (tmp_path / "i.building" / "vectors.f32").open("ab") as stream:
        stream.write(b"half a block")  # as a kill in the middle of a write leaves it
    build_index(asked)
    assert len(encoded) == 4
    build_index(options(asked.corpus, tmp_path / "whole", backend="dense", encoder=asked.encoder))
    assert contents(asked.out) == contents(tmp_path / "whole")


def test_a_build_interrupted_before_a_setting_was_known_goes_on(interrupted):
    asked, encoded = interrupted
    progress = asked.out.with_name("i.building") / "progress.json"
    recorded = json.loads(progress.read_text())
    for origin in recorded.values():
        assert origin["encoder"].pop("passage_dtype") is None
    progress.write_text(json.dumps(recorded))
    build_index(asked)
    assert len(encoded) == 4


def test_vectors_of_another_corpus_are_not_taken_over(interrupted, tmp_path):
    asked, encoded = interrupted
    rows = [json.loads(line) for line in asked.corpus.read_text(encoding="utf-8").splitlines()]
    rows[0]["contents"] += " Changed."
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(options(changed, asked.out, backend="dense", encoder=asked.encoder))
    assert len(encoded) == 20


def test_what_another_kind_of_build_left_behind_is_not_published(interrupted, corpus):
    asked, _ = interrupted
    build_index(options(corpus, asked.out))
    assert not [
        name for name in contents(asked.out) if "vectors" in name or "progress" in name or "faiss" in name
    ]
