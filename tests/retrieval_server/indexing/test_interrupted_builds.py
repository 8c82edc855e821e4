"""Builds with a preset that were stopped, after what they had done: what is kept, what is removed, what is
asked of the disk, and a merge that fails before its work and not after."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
from retrieval_server.indexing import dense_build, resource_estimate
from retrieval_server.indexing.builder import build_index, merge_parts
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.indexing.work_files import PARTIAL_INDEX, VECTORS

from ..builders import dense_options, parts_of

FLAT = 20 * 32 * 4  # bytes of the corpus's vectors


@pytest.fixture
def corpus(corpus, tmp_path):
    """A copy of the corpus, which a test may change."""
    return Path(shutil.copy(corpus, tmp_path / "towns.jsonl"))


@pytest.fixture
def options(corpus, tiny_bge, tmp_path):
    """options(**more): those of a build with the preset small."""

    def make(**more) -> BuildOptions:
        defaults = {"corpus": corpus, "encoder": tiny_bge, "out": tmp_path / "i", "preset": "small"}
        return dense_options(**{**defaults, **more})

    return make


@pytest.fixture
def parts(corpus, encoder, tmp_path):
    """The corpus, encoded in 32 bits in one part."""
    return parts_of(corpus, tmp_path / "parts", encoder)


def stops(*_, **__):
    raise KeyboardInterrupt


def not_called(*_, **__):
    raise AssertionError("this work was done already, or should not be done yet")


def stopped(options: BuildOptions, function: str) -> None:
    """A build that is stopped when it calls this function of dense_build.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_build, function, stops)
        with pytest.raises(KeyboardInterrupt):
            build_index(options)


@pytest.fixture
def free(monkeypatch):
    """free(bytes): what the disk has left from now on."""

    def have(number: int) -> None:
        usage = namedtuple("usage", "free")(number)
        monkeypatch.setattr(resource_estimate.shutil, "disk_usage", lambda _: usage)

    return have


def test_a_build_stopped_while_it_measures_does_not_index_again(options, tmp_path, monkeypatch):
    stopped(options(), "measure_recall")
    work = tmp_path / "i.building"
    before = (work / PARTIAL_INDEX).read_bytes()
    assert before == (work / FAISS_INDEX).read_bytes(), "the finished index is kept"
    monkeypatch.setattr("retrieval_server.indexing.faiss_build.make_index", not_called)
    build_index(options())
    assert (tmp_path / "i" / FAISS_INDEX).read_bytes() == before
    assert not (tmp_path / "i" / PARTIAL_INDEX).exists()


@pytest.mark.parametrize("damaged", [b"", b"IxPT half a file", None])
def test_a_damaged_half_built_index_is_built_anew_with_a_warning(options, tmp_path, caplog, damaged):
    stopped(options(), "measure_recall")
    half = tmp_path / "i.building" / PARTIAL_INDEX
    (tmp_path / "i.building" / FAISS_INDEX).unlink()  # it is the same file
    whole = half.read_bytes()
    half.write_bytes(whole[:-100] if damaged is None else damaged)
    build_index(options())
    assert PARTIAL_INDEX in caplog.text and "from the beginning" in caplog.text
    assert (tmp_path / "i" / FAISS_INDEX).read_bytes() == whole


def test_vectors_of_a_build_of_another_kind_do_not_count_as_room(options, tmp_path, free):
    stopped(options(preset=None), "write_faiss_index")
    vectors = tmp_path / "i.building" / VECTORS
    assert vectors.stat().st_size == FLAT
    free(0)
    with pytest.raises(UserError, match="has 0 B free"):
        build_index(options())
    assert not vectors.exists(), "removed, so that the system counts them itself"


def test_a_corpus_that_has_changed_is_encoded_again_and_said_so(options, interrupted, corpus, caplog, capsys):
    encoded = interrupted(options())
    corpus.write_text(corpus.read_text() + '{"id": "new", "contents": "Cham"}\n')
    build_index(options())
    assert "an interrupted build has left" in capsys.readouterr().out and "of another corpus" in caplog.text
    assert len(encoded) == 21


def test_without_room_for_the_vectors_an_index_without_a_preset_is_not_begun(options, tmp_path, free):
    free(2 * FLAT - 1)
    with pytest.raises(UserError, match="needs 5 kB"):
        build_index(options(preset=None))
    assert not (tmp_path / "i.building").exists()


def test_a_half_built_index_of_other_options_does_not_count_as_room(options, tmp_path, free):
    stopped(options(), "measure_recall")
    work = tmp_path / "i.building"
    rows = (work / ROWS).stat().st_size
    free(0)
    with pytest.raises(UserError, match=f"has {rows} B free"):
        build_index(options(train_sample=19))
    assert (work / ROWS).exists() and not (work / PARTIAL_INDEX).exists()


def test_a_merge_opens_the_encoder_before_it_builds_the_index(options, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(dense_build, "write_faiss_index", not_called)
    with pytest.raises(UserError, match="nowhere"):
        merge_parts(options(encoder=str(tmp_path / "nowhere")), parts)
    assert not (tmp_path / "i.building").exists()


def test_an_exact_merge_needs_no_encoder_and_room_for_the_index_alone(options, parts, tmp_path, free, capsys):
    free(FLAT - 1)
    exact = options(preset="exact", encoder=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="needs 3 kB"):
        merge_parts(exact, parts)
    free(FLAT)
    merge_parts(exact, parts)
    assert "for the process without the encoder" in capsys.readouterr().out


def test_a_build_that_encodes_needs_room_for_vectors_and_index(options, free, capsys):
    free(2 * FLAT - 1)
    with pytest.raises(UserError, match="needs 5 kB"):
        build_index(options(preset="exact"))
    free(2 * FLAT)
    build_index(options(preset="exact"))
    assert "without the encoder" not in capsys.readouterr().out


def test_a_merge_counts_the_encoder_of_the_server_where_it_has_one(options, parts, capsys):
    merge_parts(options(), parts)
    printed = capsys.readouterr().out
    assert "for the process" in printed and "without the encoder" not in printed
