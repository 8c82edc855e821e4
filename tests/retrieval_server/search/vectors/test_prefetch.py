"""A mapped index is read ahead once, in the background, if it fits into memory."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from retrieval_server.search.vectors import prefetch
from retrieval_server.search.vectors.prefetch import Prefetch, available_memory


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_the_free_memory_is_known():
    assert 2**20 < available_memory() < 2**50


#: The files of a control group's memory: limit, use, and how memory.stat calls pages of files.
VERSIONS = {
    "v2": ("memory.max", "memory.current", ("inactive_file", "active_file")),
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "limit, used, pages, expected",
    [
        ("4096", 0, 0, 4096),
        ("4096", 3000, 0, 1096),
        ("4096", 3000, 2000, 3096),
        ("4096", 5000, 0, 0),
        ("9999999", 1000, 0, 1024 * 100),
        ("9223372036854771712", 1000, 0, 1024 * 100),
        ("max", 1000, 0, 1024 * 100),
    ],
)
def test_a_container_has_what_its_limit_leaves_it(
    tmp_path, monkeypatch, version, limit, used, pages, expected
):
    """``pages``: bytes of files in the cache, which are part of the use and are given up."""
    (tmp_path / "meminfo").write_text("MemTotal: 500 kB\nMemAvailable: 100 kB\n")
    monkeypatch.setattr(prefetch, "_MEMORY", tmp_path / "meminfo")
    folder = {"v2": tmp_path, "v1": tmp_path / "memory"}[version]
    folder.mkdir(exist_ok=True)
    limit_file, use_file, names = VERSIONS[version]
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / use_file).write_text(f"{used}\n")
    stat = [f"{names[0]} {pages // 2}", f"{names[1]} {pages // 2}", "anon 77", "inactive_anon 88"]
    (folder / "memory.stat").write_text("\n".join(stat) + "\n")
    system = Path("/sys/fs/cgroup")
    groups = [
        replace(group, folder=tmp_path / group.folder.relative_to(system)) for group in prefetch._GROUPS
    ]
    monkeypatch.setattr(prefetch, "_GROUPS", groups)
    assert available_memory() == expected


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


def test_where_the_system_does_not_say_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "_MEMORY", tmp_path / "none")
    assert available_memory() is None
