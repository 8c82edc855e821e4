"""The file of a judge's replies: shared by processes, and whole after whatever was done to it."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.rewards.judge_cache import ReplyCache

HERE = Path(__file__).resolve().parent


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_without_a_path_replies_are_known_as_long_as_the_object():
    cache = ReplyCache(None)
    cache.put(key(1), "correct")
    assert cache.get(key(1)) == "correct" and cache.get(key(2)) is None
    assert ReplyCache(None).get(key(1)) is None


def test_what_another_has_appended_meanwhile_is_known(tmp_path):
    first, second = ReplyCache(str(tmp_path)), ReplyCache(str(tmp_path / "judge.jsonl"))
    first.put(key(1), "2")
    assert second.get(key(1)) == "2"
    second.put(key(2), "0")
    assert first.get(key(2)) == "0"


@contextmanager
def running(program: str, *each: tuple[object, ...]) -> Iterator[list[subprocess.Popen]]:
    """Processes that run ``program``, one with each tuple of arguments; they end with the block.

    Not forks: this process may have threads of other tests, with locks.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers: list[subprocess.Popen] = []
    try:
        for arguments in each:
            command = [sys.executable, "-B", "-c", program, *map(str, arguments)]
            workers.append(subprocess.Popen(command, cwd=HERE, env=environment, **pipes))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


#: As in this module, whose own imports would take each process longer than its work.
CACHE_AND_KEY = """
import hashlib
import sys

from rag_r1.rewards.judge_cache import ReplyCache


def key(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


"""
APPEND = f"""{CACHE_AND_KEY}
cache, first = ReplyCache(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
input()
for number in range(first, first + 200):
    cache.put(key(number), str(number % 3))
"""


def test_processes_that_append_at_the_same_time_lose_nothing(tmp_path):
    with running(APPEND, *((tmp_path, 200 * n) for n in range(2))) as workers:
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait(timeout=120) for worker in workers] == [0] * 2
    cache = ReplyCache(str(tmp_path))
    assert [cache.get(key(number)) for number in range(400)] == [str(number % 3) for number in range(400)]
    # An empty line may stand between two: who sees the line of another half written begins a new one.
    assert sum(line != b"" for line in (tmp_path / "judge.jsonl").read_bytes().split(b"\n")) == 400


def test_a_line_that_was_cut_off_is_skipped_and_costs_no_other(tmp_path, caplog):
    file = tmp_path / "judge.jsonl"
    for number in range(2):
        ReplyCache(str(file)).put(key(number), "correct")
    file.write_bytes(file.read_bytes()[:-10])
    cache = ReplyCache(str(file))
    assert cache.get(key(0)) == "correct" and cache.get(key(1)) is None
    cache.put(key(2), "incorrect")
    with caplog.at_level(logging.WARNING):
        again = ReplyCache(str(file))
    assert [again.get(key(number)) for number in range(3)] == ["correct", None, "incorrect"]
    assert "1 lines that cannot be read" in caplog.text and str(file) in caplog.text


JUNK = [b"[[", b'{"request": 1}\n', b"5\n", b"\n\n", b"[]\n", b"\xff"]


@given(
    replies=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["0", "1", "correct"]), st.booleans())),
    junk=st.lists(st.binary(max_size=30) | st.sampled_from(JUNK)),
)
def test_the_last_reply_is_known_in_whatever_garbage_it_stands(tmp_path_factory, replies, junk):
    file = tmp_path_factory.mktemp("cache") / "judge.jsonl"
    expected: dict[int, str] = {}
    writers = [ReplyCache(str(file)), ReplyCache(str(file))]
    for turn, (number, reply, other) in enumerate(replies):
        if turn < len(junk):
            with file.open("ab") as appended:
                appended.write(junk[turn])
        writers[other].put(key(number), reply)
        expected[number] = reply
    reader = ReplyCache(str(file))
    assert {number: reader.get(key(number)) for number in expected} == expected
    for cache in (*writers, reader):
        cache.close()


WRITE_TWO = f"""{CACHE_AND_KEY}
import logging.handlers
import resource

told = logging.handlers.BufferingHandler(10)
logging.getLogger("rag_r1").addHandler(told)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))  # room for half a line
cache = ReplyCache(sys.argv[1])
for number in range(2):
    cache.put(key(number), "correct")
assert cache.get(key(0)) == cache.get(key(1)) == "correct"
for record in told.buffer:
    print(record.getMessage())
"""


def test_a_full_disk_costs_the_file_only_and_is_told_once(tmp_path):
    with running(WRITE_TWO, (tmp_path,)) as [worker]:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
    [line] = output.splitlines()
    assert line.endswith("further verdicts are kept for this run only") and str(tmp_path) in line
    cache = ReplyCache(str(tmp_path))
    assert cache.get(key(0)) is None
    cache.put(key(1), "incorrect")
    assert ReplyCache(str(tmp_path)).get(key(1)) == "incorrect"
