"""A disk that is full in the middle of a trajectory's dump."""

from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager

import pytest

from rag_r1.agent import Trajectory
from rag_r1.agent.records import TrajectoryDump, read_records


@contextmanager
def files_of_at_most(size):
    """Every file of this process is full at `size` bytes: a write is cut there, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def record(name):
    return Trajectory(name, "Who?", "rag_r1_mq", answer="x" * 50)


def ids(folder):
    return [json.loads(line)["id"] for path in folder.rglob("*.jsonl") for line in path.open()]


@pytest.mark.parametrize("compressed", [False, True])
def test_records_that_do_not_fit_are_lost_whole_and_the_file_stays_readable(tmp_path, compressed):
    dump = TrajectoryDump(str(tmp_path), compressed=compressed)
    assert dump.write(record("a"), step=1, split="train")
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.suffix == (".gz" if compressed else ".jsonl")
    with files_of_at_most(2 * path.stat().st_size + path.stat().st_size // 2):
        assert [dump.write(record(name), step=1, split="train") for name in "bcd"] == [True, False, False]
    assert dump.write(record("e"), step=1, split="train")
    assert [record["id"] for record in read_records(tmp_path)] == ["a", "b", "e"]
    assert compressed or ids(tmp_path) == ["a", "b", "e"]


def test_a_full_disk_is_reported_once_with_file_and_remedy_and_again_if_it_fills_up_again(tmp_path, caplog):
    dump = TrajectoryDump(str(tmp_path))
    for times in (1, 2):
        with files_of_at_most(0):
            assert not any(dump.write(record(name), step=1, split="train") for name in "abc")
        assert dump.write(record("d"), step=1, split="train")
        assert [entry.levelname for entry in caplog.records] == ["ERROR"] * times
    (path,) = tmp_path.rglob("*.jsonl")
    assert str(path) in caplog.text and "set rag_r1.trajectory_dir=null" in caplog.text


def test_a_device_without_space_costs_the_record_only(tmp_path):
    dump = TrajectoryDump(str(tmp_path))
    (tmp_path / "train").mkdir()
    full = tmp_path / "train" / f"step_000001-{os.getpid()}.jsonl"
    full.symlink_to("/dev/full")
    assert not dump.write(record("a"), step=1, split="train")
    assert dump.write(record("b"), step=2, split="train")
    full.unlink()
    assert ids(tmp_path) == ["b"]
