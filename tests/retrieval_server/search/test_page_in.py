"""A mapped index is read ahead once, in the background, if it fits into memory."""

from __future__ import annotations

import sys

import pytest

from retrieval_server.search import page_in
from retrieval_server.search.page_in import PageIn, available_memory


@pytest.mark.parametrize("sizes", [[0], [1], [10, 0, 5], [3, 100]])
def test_everything_is_read_and_the_share_says_so(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(page_in, "_BLOCK", 4)
    files = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(files, sizes, strict=True):
        path.write_bytes(b"x" * size)
    reading = PageIn(files, available=sum(sizes))
    reading.wait()
    assert reading.share == 1.0
    reading.close()


def test_a_file_larger_than_the_free_memory_is_left_alone(tmp_path, caplog):
    (tmp_path / "index").write_bytes(b"x" * 100)
    reading = PageIn([tmp_path / "index"], available=99)
    reading.wait()
    assert reading.share is None and "100 bytes do not fit into the 99 bytes" in caplog.text
    reading.close()


def test_closing_ends_the_reading_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(page_in, "_BLOCK", 1)
    (tmp_path / "index").write_bytes(b"x" * 5_000_000)
    reading = PageIn([tmp_path / "index"])
    reading.close()
    assert 0.0 <= reading.share < 1.0
    assert not reading._thread.is_alive()


def test_a_file_that_becomes_shorter_while_it_is_read_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(page_in, "_BLOCK", 1)
    path = tmp_path / "index"
    path.write_bytes(b"x" * 100_000)
    reading = PageIn([path])
    path.write_bytes(b"")
    reading.wait()
    assert reading.share <= 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_the_free_memory_is_known():
    assert 2**20 < available_memory() < 2**50


@pytest.mark.parametrize("limit, expected", [("4096", 4096), ("9999999", 1024 * 100), ("max", 1024 * 100)])
def test_the_limit_of_a_container_counts(tmp_path, monkeypatch, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal: 500 kB\nMemAvailable: 100 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(page_in, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(page_in, "_LIMIT", tmp_path / "memory.max")
    assert available_memory() == expected


def test_where_the_system_does_not_say_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(page_in, "_MEMORY", tmp_path / "none")
    assert available_memory() is None
