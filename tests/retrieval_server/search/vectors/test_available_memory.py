"""The free memory of the machine, or what the limit of a container leaves."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from retrieval_server.search.vectors import available_memory as memory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_the_free_memory_is_known():
    assert 2**20 < memory.available_memory() < 2**50


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
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "meminfo")
    folder = {"v2": tmp_path, "v1": tmp_path / "memory"}[version]
    folder.mkdir(exist_ok=True)
    limit_file, use_file, names = VERSIONS[version]
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / use_file).write_text(f"{used}\n")
    stat = [f"{names[0]} {pages // 2}", f"{names[1]} {pages // 2}", "anon 77", "inactive_anon 88"]
    (folder / "memory.stat").write_text("\n".join(stat) + "\n")
    system = Path("/sys/fs/cgroup")
    groups = [replace(group, folder=tmp_path / group.folder.relative_to(system)) for group in memory._GROUPS]
    monkeypatch.setattr(memory, "_GROUPS", groups)
    assert memory.available_memory() == expected


def test_where_the_system_does_not_say_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "none")
    assert memory.available_memory() is None
