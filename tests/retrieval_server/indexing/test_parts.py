"""An index made of parts equals one made in one go; parts that do not belong together are refused by name."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.encode import vector_files
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError
from retrieval_server.folder.corpus import CorpusReader
from retrieval_server.folder.locks import named_lock
from retrieval_server.folder.manifest import sha256_of_file
from retrieval_server.indexing import parts as parts_module
from retrieval_server.indexing.builder import merge_parts
from retrieval_server.indexing.parts import (
    EncodingPart,
    check_parts,
    encode_part,
    open_corpus,
    prepare_corpus,
)

from ..builders import build, contents, dense_options, edit_json, parts_of
from ..running import ROOT


@pytest.fixture(scope="module")
def three_parts(corpus, encoder, tmp_path_factory):
    """The 20 passages in three parts, of blocks of 4; for tests that copy it."""
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_files, "BLOCK", 4)
        return parts_of(corpus, folder, encoder, (3, 1, 2))


@pytest.fixture
def parts(three_parts, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "BLOCK", 4)
    return shutil.copytree(three_parts, tmp_path / "some parts")


def edit(path, **values):
    edit_json(path, lambda data: data.update(values))


@given(st.integers(0, 100_000), st.integers(1, 40))
def test_parts_tile_the_rows_at_the_borders_of_blocks(count, of):
    ranges = [EncodingPart(number, of).row_range(count) for number in range(1, of + 1)]
    assert ranges[0][0] == 0 and ranges[-1][1] == count
    assert all(before[1] == after[0] for before, after in zip(ranges, ranges[1:], strict=False))
    assert all(start % vector_files.BLOCK == 0 or start == count for start, _ in ranges)


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "-1/3", "1/3/4", "a/b", "1/100000", "¹/3"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--part"):
        EncodingPart.parse(text)


def test_an_index_of_parts_has_the_bytes_of_one_made_in_one_go(parts, corpus, tiny_bge, tmp_path):
    merge_parts(dense_options(corpus, tiny_bge, tmp_path / "merged"), parts)
    whole = build(corpus, tmp_path / "whole", "dense", encoder=str(tiny_bge))
    assert contents(tmp_path / "merged") == contents(whole)


def test_a_finished_part_is_not_encoded_again(parts, encoder, monkeypatch):
    monkeypatch.setattr(Encoder, "encode_passages", None)
    assert encode_part(parts, EncodingPart(2, 3), encoder, progress=False).sha256


def test_more_parts_than_blocks_leave_some_empty(corpus, encoder, tmp_path):
    _, files, _ = check_parts(parts_of(corpus, tmp_path, encoder, (1, 2)), progress=False)
    assert sorted(path.stat().st_size for path in files) == [0, 20 * 32 * 4]


def test_the_corpus_is_written_once_and_needed_first(parts, corpus, encoder, tmp_path):
    with pytest.raises(UserError, match="Choose another --parts"):
        prepare_corpus(CorpusReader(corpus, progress=False), parts)
    with pytest.raises(UserError, match="rag-r1 index build passages --corpus"):
        encode_part(tmp_path / "empty", EncodingPart(1, 1), encoder)
    edit(parts / "corpus.json", count=21)
    with pytest.raises(UserError, match="20 passages, but corpus.json says 21"):
        encode_part(parts, EncodingPart(1, 3), encoder)


def test_a_corpus_that_is_written_again_leaves_the_index_of_the_earlier_one_alone(
    parts, corpus, tiny_bge, tmp_path
):
    """A merged index shares the file of the passages as a hard link."""
    merge_parts(dense_options(corpus, tiny_bge, tmp_path / "merged"), parts)
    before = contents(tmp_path / "merged")
    (parts / "corpus.json").unlink()
    (tmp_path / "c.tsv").write_text("1\tulm\n")
    prepare_corpus(CorpusReader(tmp_path / "c.tsv", progress=False), parts)
    assert contents(tmp_path / "merged") == before


def test_a_corpus_that_another_process_writes_meanwhile_is_not_written_over(corpus, tmp_path, monkeypatch):
    first = prepare_corpus(CorpusReader(corpus, progress=False), tmp_path / "other")

    @contextmanager
    def late_lock(folder, refusal):
        for name in ("passages.arrow", "corpus.json"):
            shutil.copy(tmp_path / "other" / name, folder)
        yield

    monkeypatch.setattr(parts_module, "exclusive_lock", late_lock)
    (tmp_path / "c.tsv").write_text("1\tulm\n")
    with pytest.raises(UserError, match="Choose another --parts"):
        prepare_corpus(CorpusReader(tmp_path / "c.tsv", progress=False), tmp_path / "parts")
    assert open_corpus(tmp_path / "parts")[0] == first


def refuse(parts, *words):
    with pytest.raises(UserError) as caught:
        check_parts(parts, progress=False)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_an_unfinished_and_a_damaged_part_are_named(parts):
    second = parts / "part-00002-of-00003.f32"
    data = second.read_bytes()
    second.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refuse(parts, "part 2/3", "its hash differs", "encode --parts")
    second.unlink()
    refuse(parts, "part 2/3", "its hash differs")
    edit_json(second.with_suffix(".json"), lambda record: record.pop("sha256"))
    refuse(parts, "part 2/3 is not finished")
    second.with_suffix(".json").unlink()
    refuse(parts, "part 2/3 is missing", f"encode --parts '{parts}'")
    for path in parts.glob("part-*"):
        path.unlink()
    refuse(parts, "no part in this folder")


def test_a_part_of_another_corpus_encoder_or_division_is_named(parts, encoder):
    record = parts / "part-00003-of-00003.json"
    good = record.read_text()
    edit(record, corpus_sha256="0" * 64)
    refuse(parts, "part 3/3", "another corpus", "0" * 64)
    record.write_text(good)
    edit(record, encoder={**encoder.section.model_dump(), "sha256": "1" * 64})
    refuse(parts, "part 3/3", "another encoder", "1" * 64, encoder.section.sha256)
    edit(record, encoder={**encoder.section.model_dump(), "name": "/elsewhere/the-same-model"})
    check_parts(parts, progress=False)
    edit(record, start=8)
    refuse(parts, "part 3/3", "another range (rows 8-20 instead of 12-20)")
    record.write_text(good)
    encode_part(parts, EncodingPart(1, 2), encoder, progress=False)
    refuse(parts, "different divisions (1/2, 1/3)")
    record.write_text("{")
    (parts / "part-00001-of-00002.json").unlink()
    refuse(parts, "part-00003-of-00003.json: not a readable record")


def test_vectors_of_another_encoder_are_replaced_only_on_request(parts, make_bert):
    other = Encoder.create(str(make_bert("bge-small-en-v1.5", seed=3)), EncoderOptions(), device="cpu")
    before = sha256_of_file(parts / "part-00001-of-00003.f32")
    with pytest.raises(UserError, match="part 1/3: .*another encoder .*--overwrite"):
        encode_part(parts, EncodingPart(1, 3), other, progress=False)
    assert sha256_of_file(parts / "part-00001-of-00003.f32") == before
    assert encode_part(parts, EncodingPart(1, 3), other, overwrite=True, progress=False).sha256 != before


def test_a_part_whose_replacement_was_killed_is_not_taken_for_a_finished_one(parts, encoder, monkeypatch):
    part, before = EncodingPart(1, 3), contents(parts)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parts_module, "_write_record", Mock(side_effect=KeyboardInterrupt))
        encode_part(parts, part, encoder, overwrite=True, progress=False)
    encode_part(parts, part, encoder, progress=False)
    assert contents(parts) == before


def test_a_part_that_is_being_encoded_is_refused_in_every_type(parts, encoder):
    part, before = EncodingPart(2, 3), contents(parts)
    with named_lock(part.lock(parts), "busy"):
        for kind in ("float32", "int8"):
            with pytest.raises(UserError, match="part 2/3: another process is encoding it"):
                encode_part(parts, part, encoder, kind=kind, overwrite=True, progress=False)
    assert contents(parts) == before
    encode_part(parts, part, encoder, kind="int8", overwrite=True, progress=False)
    assert sorted(path.suffix for path in parts.glob("part-00002*")) == [".i8", ".json"]


def test_a_refused_part_leaves_no_file_of_its_type(parts, encoder):
    before = contents(parts)
    with pytest.raises(UserError, match="another type"):
        encode_part(parts, EncodingPart(2, 3), encoder, kind="int8", progress=False)
    assert contents(parts) == before


def command(*args):
    return [sys.executable, str(ROOT / "retrieval_server" / "build_index.py"), *map(str, args)]


@pytest.mark.full
def test_a_part_that_was_killed_goes_on_and_ends_in_the_same_bytes(tiny_bge, encoder, tmp_path):
    corpus = tmp_path / "c.tsv"
    with corpus.open("w") as rows:
        for i in range(12 * vector_files.BLOCK):
            rows.write(f"{i}\tUlm   {'the river carries barges with timber ' * (i % 5)}{i}\n")
    done = subprocess.run(command("passages", "--corpus", corpus, "--parts", tmp_path / "a"), timeout=300)
    assert done.returncode == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    words = ("--parts", tmp_path / "a", "--part", "1/2", "--encoder", tiny_bge, "--device", "cpu")
    encode = command("encode", *words)
    vectors = tmp_path / "a" / "part-00001-of-00002.f32"
    block = vector_files.BLOCK * 32 * 4
    process = subprocess.Popen(encode)
    while not (vectors.exists() and vectors.stat().st_size >= 2 * block):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert 2 * block <= vectors.stat().st_size < 6 * block, "it was killed too late: nothing was left to do"
    with vectors.open("ab") as stream:
        stream.write(b"half a block")  # what a kill in the middle of a write leaves
    assert subprocess.run(encode, timeout=300).returncode == 0
    # Undisturbed, and in another process:
    encode_part(tmp_path / "b", EncodingPart(1, 2), encoder, progress=False)
    assert vectors.stat().st_size == 6 * block
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
