"""Whole lines of a file from a place on, plain and gzip."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.explorer.record_files import lines as lines_module
from rag_r1.explorer.record_files.lines import START, line_at, whole_lines

TEXTS = st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")), max_size=12)


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in zip(ends, ends[1:], strict=False)]


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 500), max_size=6), compressed=st.booleans())
def test_a_file_that_grows_gives_each_line_once_and_each_line_is_found_again(texts, cuts, compressed):
    data = b"".join(text + b"\n" for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl.gz" if compressed else "records.jsonl")
        path.touch()
        place, found = START, []
        for part in parts(data, cuts):
            with path.open("ab") as file:
                file.write(gzip.compress(part) if compressed else part)
            for line in whole_lines(path, place):
                found.append(line)
                place = line.next
        assert [line.data for line in found] == texts
        assert [line_at(path, line.position, len(line.data)) for line in found] == texts


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_without_an_end_comes_when_it_has_one(tmp_path, name):
    path = tmp_path / name
    write = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(write(b"one\ntw"))
    (first,) = whole_lines(path, START)
    with path.open("ab") as file:
        file.write(write(b"o\nthree"))
    (second,) = whole_lines(path, first.next)
    assert (first.data, second.data) == (b"one", b"two")


def test_of_gzip_data_that_a_kill_has_cut_off_the_whole_lines_are_read(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    data = gzip.compress(b"".join(b'{"number": %d}\n' % i for i in range(5000)))
    path.write_bytes(data[: len(data) // 2])
    found = list(whole_lines(path, START))
    assert 0 < len(found) < 5000 and found[-1].data == b'{"number": %d}' % (len(found) - 1)


def test_broken_gzip_data_is_an_error_after_what_is_before_it(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"one\n") + b"this is no gzip data")
    found = whole_lines(path, START)
    assert next(found).data == b"one"
    with pytest.raises(zlib.error):
        next(found)


def test_a_line_that_is_too_long_has_no_data_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(lines_module, "_CHUNK_BYTES", 4)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100 + b"\nshort\n")
    assert [line.data for line in whole_lines(path, START)] == [None, b"short"]


def test_a_place_that_the_file_does_not_have_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    with pytest.raises(ValueError):
        line_at(path, (0, 0), 100)


def test_a_pipe_or_a_device_is_an_error_instead_of_an_endless_wait():
    for read in (lambda path: next(whole_lines(path, START), None), lambda path: line_at(path, START, 0)):
        with pytest.raises(OSError, match="not an ordinary file"):
            read(Path(os.devnull))
