"""A cache that processes share, as the reward's judge has: whole after whatever was done to its file."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.runs.response_cache import ResponseCache, Usage

HERE = Path(__file__).resolve().parent


class ReplyCache:
    """Replies by number, in the file `judge.jsonl` of a folder."""

    def __init__(self, folder: Path | None):
        self.cache = ResponseCache.shared(None if folder is None else folder / "judge.jsonl")

    def get(self, number: int) -> str | None:
        line = self.cache.get("", 0, str(number).encode())
        return None if line is None else line["answer"]["text"]

    def put(self, number: int, reply: str) -> None:
        self.cache.put("", 0, str(number).encode(), {"text": reply}, Usage(requests=1))

    def close(self) -> None:
        self.cache.close()


def of_an_earlier_version(number: int, reply: str) -> str:
    return json.dumps({"request": hashlib.sha256(str(number).encode()).hexdigest(), "reply": reply}) + "\n"


def test_without_a_path_replies_are_known_as_long_as_the_object():
    cache = ReplyCache(None)
    cache.put(1, "correct")
    assert cache.get(1) == "correct" and cache.get(2) is None
    assert ReplyCache(None).get(1) is None


def test_what_another_has_appended_meanwhile_is_known(tmp_path):
    first, second = ReplyCache(tmp_path), ReplyCache(tmp_path)
    first.put(1, "2")
    assert second.get(1) == "2"
    second.put(2, "0")
    assert first.get(2) == "0"


def test_a_reply_that_is_too_long_for_the_file_is_known_meanwhile(tmp_path):
    cache, text = ReplyCache(tmp_path), "x" * (1 << 20)
    cache.put(1, text)
    assert cache.get(1) == text and ReplyCache(tmp_path).get(1) is None


def test_replies_of_an_earlier_version_are_known_and_those_of_now_are_appended(tmp_path):
    file = tmp_path / "judge.jsonl"
    file.write_text(of_an_earlier_version(1, "correct") + of_an_earlier_version(2, "0"))
    first = ReplyCache(tmp_path)
    first.put(2, "1")
    for cache in (first, ReplyCache(tmp_path)):
        assert [cache.get(number) for number in range(4)] == [None, "correct", "1", None]


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
CACHE = f"""
import sys
from pathlib import Path

from rag_r1.runs.response_cache import ResponseCache, Usage

{inspect.getsource(ReplyCache)}
"""
APPEND = f"""{CACHE}
cache, first = ReplyCache(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
input()
for number in range(first, first + 200):
    cache.put(number, str(number % 3))
"""


def test_processes_that_append_at_the_same_time_lose_nothing(tmp_path):
    with running(APPEND, *((tmp_path, 200 * n) for n in range(2))) as workers:
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait(timeout=120) for worker in workers] == [0] * 2
    cache = ReplyCache(tmp_path)
    assert [cache.get(number) for number in range(400)] == [str(number % 3) for number in range(400)]
    # An empty line may stand between two: who sees the line of another half written begins a new one.
    assert sum(line != b"" for line in (tmp_path / "judge.jsonl").read_bytes().split(b"\n")) == 400


def test_a_line_that_was_cut_off_is_skipped_and_costs_no_other(tmp_path, caplog):
    file = tmp_path / "judge.jsonl"
    for number in range(2):
        ReplyCache(file.parent).put(number, "correct")
    file.write_bytes(file.read_bytes()[:-10])
    cache = ReplyCache(file.parent)
    assert cache.get(0) == "correct" and cache.get(1) is None
    cache.put(2, "incorrect")
    with caplog.at_level(logging.WARNING):
        again = ReplyCache(file.parent)
    assert [again.get(number) for number in range(3)] == ["correct", None, "incorrect"]
    assert "1 lines that cannot be read" in caplog.text and str(file) in caplog.text


def test_no_answer_is_taken_from_a_line_that_is_skipped(tmp_path):
    ReplyCache(tmp_path).put(1, "correct")
    file = tmp_path / "judge.jsonl"
    file.write_text(file.read_text().replace('"requests": 1', '"requests": null'))
    assert ReplyCache(tmp_path).get(1) is None


JUNK = [
    b"[[",
    b'{"request": 1}\n',
    b'{"ask": "", "turn": 0, "sha256": "", "answer": [], "usage": {}}\n',
    b'{"ask": "", "turn": 0, "sha256": "", "answer": {}, "usage": {"requests": 1e999}}\n',
    b"5\n",
    b"\n\n",
    b"[]\n",
    b"\xff",
]


@given(
    replies=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["0", "1", "correct"]), st.booleans())),
    junk=st.lists(st.binary(max_size=30) | st.sampled_from(JUNK)),
)
def test_the_last_reply_is_known_in_whatever_garbage_it_stands(tmp_path_factory, replies, junk):
    file = tmp_path_factory.mktemp("cache") / "judge.jsonl"
    expected: dict[int, str] = {}
    writers = [ReplyCache(file.parent), ReplyCache(file.parent)]
    for turn, (number, reply, other) in enumerate(replies):
        if turn < len(junk):
            with file.open("ab") as appended:
                appended.write(junk[turn])
        writers[other].put(number, reply)
        expected[number] = reply
    reader = ReplyCache(file.parent)
    assert {number: reader.get(number) for number in expected} == expected
    for cache in (*writers, reader):
        cache.close()


WRITE_TWO = f"""{CACHE}
import logging.handlers
import resource

told = logging.handlers.BufferingHandler(10)
logging.getLogger("rag_r1").addHandler(told)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))  # room for half a line
cache = ReplyCache(Path(sys.argv[1]))
for number in range(2):
    cache.put(number, "correct")
assert cache.get(0) == cache.get(1) == "correct"
for record in told.buffer:
    print(record.getMessage())
"""


def test_a_full_disk_costs_the_file_only_and_is_told_once(tmp_path):
    with running(WRITE_TWO, (tmp_path,)) as [worker]:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
    [line] = output.splitlines()
    assert line.endswith("further lines are kept for this run only") and str(tmp_path) in line
    cache = ReplyCache(tmp_path)
    assert cache.get(0) is None
    cache.put(1, "incorrect")
    assert ReplyCache(tmp_path).get(1) == "incorrect"
