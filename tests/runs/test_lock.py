"""The lock of a folder: whom it keeps out, and how long."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock, hold_out

#: Holds a folder, starts a child that outlives it, and is killed.
KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from rag_r1.runs.lock import hold_lock
with hold_lock(Path(sys.argv[1]), RuntimeError(), inherited=sys.argv[2] == "inherited"):
    child = subprocess.Popen([sys.executable, "-c", "input()"], close_fds=False)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
BUSY = RunError("in use")


@pytest.mark.parametrize("kind", ["inherited", "own"])
def test_a_child_that_outlives_its_holder_keeps_an_inherited_lock_and_no_other(tmp_path: Path, kind: str):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline()
    process.wait()
    if kind == "inherited":
        with pytest.raises(RunError, match="in use"), hold_lock(tmp_path, BUSY):
            pass
    else:
        with hold_lock(tmp_path, BUSY):
            pass
    process.stdin.close()  # ends the child
    process.stdout.read()


def test_a_lock_is_given_back_at_the_end_of_the_block_also_by_an_error(tmp_path: Path):
    with pytest.raises(KeyError), hold_lock(tmp_path / "new", BUSY):
        with pytest.raises(RunError), hold_lock(tmp_path / "new", BUSY):
            pass
        raise KeyError
    with hold_lock(tmp_path / "new", BUSY):
        pass


def test_who_waits_gets_the_lock_when_it_is_given_back(tmp_path: Path):
    order = []

    def wait() -> None:
        with hold_lock(tmp_path, None, name=".lock"):
            order.append("second")

    with hold_lock(tmp_path, BUSY, name=".lock"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_folder_itself_is_locked_without_a_file(tmp_path: Path):
    with hold_out(tmp_path, tmp_path / "journal", name=None, mode=0o700):
        with pytest.raises(RunError, match="in use by another process"):
            with hold_out(tmp_path, tmp_path / "journal", name=None):
                pass
        assert list(tmp_path.rglob("*")) == [tmp_path / "journal"]
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
