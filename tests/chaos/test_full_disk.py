"""A disk that is full in the middle of a trajectory's dump."""

from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager

from rag_r1.agent import Trajectory
from rag_r1.records import TrajectoryDump


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


def test_records_that_do_not_fit_are_lost_whole_and_the_file_stays_readable(tmp_path):
    dump = TrajectoryDump(str(tmp_path))
    assert dump.write(record("a"), step=1, split="train")
    (path,) = tmp_path.rglob("*.jsonl")
    with files_of_at_most(2 * path.stat().st_size + path.stat().st_size // 2):
        assert [dump.write(record(name), step=1, split="train") for name in "bcd"] == [True, False, False]
    assert dump.write(record("e"), step=1, split="train")
    assert ids(tmp_path) == ["a", "b", "e"]


def test_a_device_without_space_costs_the_record_only(tmp_path):
    dump = TrajectoryDump(str(tmp_path))
    (tmp_path / "train").mkdir()
    full = tmp_path / "train" / f"step_000001-{os.getpid()}.jsonl"
    full.symlink_to("/dev/full")
    assert not dump.write(record("a"), step=1, split="train")
    assert dump.write(record("b"), step=2, split="train")
    full.unlink()
    assert ids(tmp_path) == ["b"]
