"""A mapped index is read ahead once, in the background, if it fits into memory."""

from __future__ import annotations

import weakref

import pytest

from retrieval_server.search.vectors import prefetch
from retrieval_server.search.vectors.prefetch import Prefetch


@pytest.fixture(autouse=True)
def nothing_else_is_open(monkeypatch):
    monkeypatch.setattr(prefetch, "_reading", weakref.WeakSet())


@pytest.mark.parametrize("sizes", [[0], [1], [10, 0, 5], [3, 100]])
def test_everything_is_read_and_the_share_says_so(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(prefetch, "_BLOCK", 4)
    files = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(files, sizes, strict=True):
        path.write_bytes(b"x" * size)
    reading = Prefetch(files, available=sum(sizes))
    reading.wait()
    assert reading.share == 1.0
    reading.close()


def test_a_file_larger_than_the_free_memory_is_left_alone(tmp_path, caplog):
    (tmp_path / "index").write_bytes(b"x" * 100)
    reading = Prefetch([tmp_path / "index"], available=99)
    reading.wait()
    assert reading.share is None and "100 bytes do not fit into the 99 bytes" in caplog.text
    reading.close()


def test_closing_ends_the_reading_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "_BLOCK", 1)
    (tmp_path / "index").write_bytes(b"x" * 5_000_000)
    reading = Prefetch([tmp_path / "index"])
    reading.close()
    assert 0.0 <= reading.share < 1.0
    assert not reading._thread.is_alive()


def test_a_file_that_becomes_shorter_while_it_is_read_is_no_error(tmp_path, monkeypatch, caplog):
    faults = []
    monkeypatch.setattr(prefetch.threading, "excepthook", faults.append)
    monkeypatch.setattr(prefetch, "_BLOCK", 1)
    path = tmp_path / "index"
    path.write_bytes(b"x" * 5_000_000)
    reading = Prefetch([path])
    path.write_bytes(b"")
    reading.wait()
    assert reading.share < 1.0 and not faults and not caplog.records


def test_the_indexes_of_a_process_share_what_is_free_until_they_are_closed(tmp_path, monkeypatch, caplog):
    for name in "abc":
        (tmp_path / name).write_bytes(b"x" * 60)

    def opened(name: str) -> Prefetch:
        reading = Prefetch([tmp_path / name], available=130)
        reading.wait()
        return reading

    first, second, third = opened("a"), opened("b"), opened("c")
    assert [item.share for item in (first, second, third)] == [1.0, 1.0, None]
    assert "60 bytes do not fit into the 130 bytes of free memory, of which 120 are other" in caplog.text
    again = opened("a")  # a reload of the same folder
    assert again.share == 1.0, "the same pages"
    first.close()
    assert opened("c").share is None, "its pages are in use still"
    second.close()
    assert opened("c").share == 1.0
