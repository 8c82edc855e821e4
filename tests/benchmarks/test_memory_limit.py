"""A limit of memory holds for the process in it and for the page cache, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import memory_limit as module
from benchmarks.memory_limit import memory_limit

MB = 2**20


def run_within(limit, code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, preexec_fn=limit.enter, capture_output=True, text=True)


def skip_without_group(limit):
    if limit.folder is None:
        pytest.skip("left out: this machine lets us make no control group of memory")


def test_an_ordinary_folder_is_no_hierarchy_and_nothing_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_HIERARCHIES", ((tmp_path, "memory.max", "memory.peak"),))
    with memory_limit(MB) as limit:
        assert limit.folder is None and limit.peak is None
        assert run_within(limit, "print(1)").stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_where_the_limit_may_not_be_written_nothing_is_limited_and_no_group_is_left(tmp_path, monkeypatch):
    made = []

    def mkdir(folder, *_):
        os.mkdir(folder)
        os.mkdir(folder / "memory.max")  # a file that shows and that cannot be written
        made.append(folder)

    def removed(folder):
        os.rmdir(folder / "memory.max")  # a group is removed with its files
        os.rmdir(folder)

    monkeypatch.setattr(module, "_HIERARCHIES", ((tmp_path, "memory.max", "memory.peak"),))
    monkeypatch.setattr(module.Path, "mkdir", mkdir)
    monkeypatch.setattr(module.Path, "rmdir", removed)
    with memory_limit(MB) as limit:
        assert limit.folder is None
    assert len(made) == 1 and list(tmp_path.iterdir()) == []


def test_a_process_over_the_limit_is_ended_and_one_below_is_not():
    with memory_limit(128 * MB) as limit:
        skip_without_group(limit)
        assert run_within(limit, f"bytearray({16 * MB})").returncode == 0
        assert 16 * MB < limit.peak <= 128 * MB
        assert run_within(limit, f"bytearray(b'1') * {512 * MB}").returncode == -9
        folder = limit.folder
    assert not folder.exists()


def test_files_that_are_read_count_and_are_given_up(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as stream:
        for _ in range(96):
            stream.write(bytes(MB))
    with memory_limit(64 * MB) as limit:
        skip_without_group(limit)
        code = (
            f"import os; f = open({str(large)!r}, 'rb'); os.fsync(f.fileno())\n"
            "os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "while f.read(1 << 20): pass"
        )
        assert run_within(limit, code).returncode == 0
        assert limit.peak > 48 * MB
