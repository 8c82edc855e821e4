"""A lock on a file or folder itself: one process at a time, gone with the process."""

from __future__ import annotations

import signal

import pytest
from filelock import lock_descriptor

from retrieval_server.errors import UserError
from retrieval_server.folder.locks import exclusive_lock, named_lock

from ..running import python_process

HOLD = """
import sys
from pathlib import Path
from retrieval_server.folder.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    target = tmp_path / "held"
    if request.param == "file":
        target.write_bytes(b"contents")
    else:
        target.mkdir()
    return target


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_excludes_another_process_and_falls_when_that_is_killed(path, number):
    with python_process(HOLD, path) as other:
        with pytest.raises(UserError, match="^busy with it$"), exclusive_lock(path, "busy with it"):
            pass
        other.send_signal(number)
        other.wait(60)
        with exclusive_lock(path, "busy"):
            pass


def test_the_lock_leaves_no_file_behind_and_does_not_change_what_it_holds(path):
    with exclusive_lock(path, "busy"):
        pass
    with exclusive_lock(path, "busy"):
        assert [p.name for p in path.parent.iterdir()] == ["held"]
    assert path.is_dir() or path.read_bytes() == b"contents"


def test_the_lock_is_held_against_this_process_too_and_given_back_after_an_error(path):
    with pytest.raises(ZeroDivisionError), exclusive_lock(path, "busy"):
        with pytest.raises(UserError), exclusive_lock(path, "busy"):
            pass
        raise ZeroDivisionError
    with exclusive_lock(path, "busy"):
        pass


def test_a_lock_file_excludes_and_is_gone_afterwards_also_after_an_error(tmp_path):
    lock = tmp_path / "part.lock"
    with pytest.raises(ZeroDivisionError), named_lock(lock, "busy"):
        assert lock.exists()
        with pytest.raises(UserError, match="busy"), named_lock(lock, "busy"):
            pass
        raise ZeroDivisionError
    assert not lock.exists()


def test_a_lock_file_of_another_process_excludes_until_that_is_killed_and_is_taken_over(tmp_path):
    lock = tmp_path / "part.lock"
    lock.touch()
    with python_process(HOLD, lock) as other:
        with pytest.raises(UserError), named_lock(lock, "busy"):
            pass
        other.kill()
        other.wait(60)
        assert lock.exists()
        with named_lock(lock, "busy"):
            pass
    assert not lock.exists()


def test_a_lock_file_removed_by_its_holder_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """Two that locked files of the same name, one of them removed, would both believe to be alone."""
    lock, tried = tmp_path / "part.lock", []

    def removed_first(descriptor, blocking):
        tried.append(descriptor)
        if len(tried) == 1:
            lock.unlink()
        return lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr("retrieval_server.folder.locks.lock_descriptor", removed_first)
    with named_lock(lock, "busy"):
        assert len(tried) == 2 and lock.exists()
        with pytest.raises(UserError), named_lock(lock, "busy"):
            pass
