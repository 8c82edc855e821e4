"""Trajectory records are written beside the event loop, in order, and compressed if that is asked for."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory
from rag_r1.agent import records as module
from rag_r1.agent.records import TrajectoryDump, read_records, records_by_step, trajectory_of
from rag_r1.io.errors import DataError

SUFFIXES = {False: ".jsonl", True: ".jsonl.gz"}


def record(name: str) -> Trajectory:
    return Trajectory(name, "Who\u2028 wrote \ud800?", "rag_r1_mq", answer=f"x\n{name}")


def written(folder: Path, names: list[str], *, compressed: bool = True) -> Path:
    dump = TrajectoryDump(str(folder), compressed=compressed)
    assert all(dump.write(record(name), step=1, split="train") for name in names)
    return folder / "train" / f"step_000001-{os.getpid()}{SUFFIXES[compressed]}"


def test_while_the_disk_is_slow_the_event_loop_goes_on(tmp_path, monkeypatch):
    disk, happened = threading.Event(), []
    opened = module.open_to_append

    def slow(path: Path) -> int:
        happened.append("write begun")
        disk.wait(10)
        happened.append("disk answered")
        return opened(path)

    monkeypatch.setattr(module, "open_to_append", slow)

    async def others() -> None:
        while "write begun" not in happened:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        happened.append("other trajectories went on")
        disk.set()

    async def both() -> bool:
        dump = TrajectoryDump(str(tmp_path))
        done, _ = await asyncio.gather(dump.write_in_thread(record("a"), step=1, split="train"), others())
        return done

    assert asyncio.run(both())
    assert happened == ["write begun", "other trajectories went on", "disk answered"]
    assert [results["id"] for results in read_records(tmp_path)] == ["a"]


@pytest.mark.parametrize("compressed", [False, True])
def test_records_are_in_the_file_in_the_order_in_which_they_were_given(tmp_path, compressed):
    names = [f"q{number}" for number in range(60)]

    async def all_of_them() -> list[bool]:
        dump = TrajectoryDump(str(tmp_path), compressed=compressed)
        return await asyncio.gather(
            *(dump.write_in_thread(record(name), step=1, split="train") for name in names)
        )

    assert all(asyncio.run(all_of_them()))
    assert [trajectory_of(results) for results in read_records(tmp_path)] == list(map(record, names))


def test_the_record_of_a_trajectory_that_is_cancelled_is_written(tmp_path):
    async def cancelled() -> None:
        dump = TrajectoryDump(str(tmp_path))
        writing = asyncio.create_task(dump.write_in_thread(record("a"), step=1, split="train"))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await dump.write_in_thread(record("b"), step=1, split="train")

    asyncio.run(cancelled())
    assert [results["id"] for results in read_records(tmp_path)] == ["a", "b"]


def test_without_a_folder_nothing_is_written_and_no_thread_is_started():
    before = set(threading.enumerate())
    assert asyncio.run(TrajectoryDump(None).write_in_thread(record("a"), step=1, split="train"))
    assert set(threading.enumerate()) <= before


_WRITER = """
import asyncio, sys
from rag_r1.agent import Trajectory
from rag_r1.agent.records import TrajectoryDump

async def main():
    dump, number = TrajectoryDump(sys.argv[1], compressed=sys.argv[2] == "True"), 0
    while True:
        record = Trajectory(str(number), "Who?", "rag_r1_mq", answer="x" * 20_000)
        assert await dump.write_in_thread(record, step=1, split="train")
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.parametrize("compressed", [False, True])
def test_after_a_kill_every_record_whose_score_was_returned_is_in_the_file_whole(tmp_path, compressed):
    command = [sys.executable, "-c", _WRITER, str(tmp_path), str(compressed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        report = [int(process.stdout.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        report += [int(line) for line in process.stdout if line.endswith("\n")]
    results = [int(item["id"]) for item in read_records(tmp_path)]
    assert results[: len(report)] == report and results == list(range(len(results)))


def test_a_compressed_file_is_one_for_gzip_and_smaller(tmp_path):
    names = [f"q{number}" * 500 for number in range(20)]
    path, plain = written(tmp_path / "a", names), written(tmp_path / "b", names, compressed=False)
    assert gzip.decompress(path.read_bytes()) == plain.read_bytes()
    assert path.stat().st_size < plain.stat().st_size / 2
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(read_records(path)) == list(read_records(plain))


def test_files_of_both_kinds_are_read_together(tmp_path):
    written(tmp_path, ["a", "b"])
    written(tmp_path, ["c"], compressed=False)
    assert sorted(results["id"] for results in read_records(tmp_path)) == ["a", "b", "c"]
    (step,) = records_by_step(tmp_path / "train").values()
    assert sorted(results["id"] for results in step) == ["a", "b", "c"]


@given(st.data())
def test_wherever_a_compressed_file_was_cut_off_the_records_before_are_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    names = [f"q{number}" for number in range(data.draw(st.integers(1, 4)))]
    path, sizes = written(folder, names[:1]), []
    for count in range(1, len(names) + 1):
        path.unlink()
        sizes.append(written(folder, names[:count]).stat().st_size)
    size = data.draw(st.integers(0, sizes[-1]))
    path.write_bytes(path.read_bytes()[:size])
    results = [item["id"] for item in read_records(path)]
    whole = sum(end <= size for end in sizes)
    # The trailer of a gzip member is eight bytes after its data.
    assert results == names[: len(results)] and whole <= len(results) <= whole + 1


def test_a_file_that_was_compressed_as_a_whole_is_read_too(tmp_path):
    plain = written(tmp_path / "a", ["a", "b"], compressed=False)
    (path := tmp_path / "whole.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_records(path)) == list(read_records(plain))


def test_broken_gzip_data_are_an_error_that_names_the_file(tmp_path):
    path = written(tmp_path, ["a", "b"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\x00" * 40)
    with pytest.raises(DataError, match=rf"{path.name}: broken gzip data"):
        list(read_records(path))


def test_broken_gzip_data_can_be_left_out_as_a_broken_line_can(tmp_path):
    path = written(tmp_path, ["a"])
    path.write_bytes(path.read_bytes() + b"\xff" * 40)
    named = []
    results = list(read_records(path, skip_broken=lambda *broken: named.append(broken)))
    assert [item["id"] for item in results] == ["a"]
    ((place, reason),) = named
    assert place == str(path) and reason.startswith("broken gzip data")


def test_a_line_that_is_no_record_is_named_in_a_compressed_file_too(tmp_path):
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": "a"}).encode() + b"\n") + gzip.compress(b"{broken\n"))
    with pytest.raises(DataError, match=r"run\.jsonl\.gz, line 2: not a trajectory record"):
        list(read_records(path))


@pytest.mark.parametrize("compressed", SUFFIXES)
def test_a_line_that_is_too_long_is_an_error_before_it_is_in_memory(tmp_path, monkeypatch, compressed):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 3 << 20)
    path = tmp_path / f"run{SUFFIXES[compressed]}"
    data = b'{"id": "a"}\n' + b"x" * (50 << 20) + b"\n"
    path.write_bytes(gzip.compress(data, 1) if compressed else data)
    del data
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"run.jsonl(.gz)?, line 2: longer than 3 MiB"):
            list(read_records(path, skip_broken=True))
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_lines_that_are_longer_than_what_is_unpacked_at_once_are_read(tmp_path):
    lines = [b'{"id": "%s"}\n' % (b"x" * length) for length in (5, (1 << 20) - 10, 3 << 20, 0, 5 << 20)]
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(b"".join(gzip.compress(b"".join(part)) for part in (lines[:2], [], lines[2:])))
    assert [len(record["id"]) for record in read_records(path)] == [5, (1 << 20) - 10, 3 << 20, 0, 5 << 20]
