"""A lock on a file or folder itself: one process at a time, gone with the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from retrieval_server.errors import BuildError
from retrieval_server.folder.locking import held_alone

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from retrieval_server.folder.locking import held_alone
with held_alone(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(path):
    """The path, held by another process that can be ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    made = tmp_path / "held"
    if request.param == "file":
        made.write_bytes(b"contents")
    else:
        made.mkdir()
    return made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_excludes_another_process_and_falls_when_that_is_killed(path, number):
    with held_elsewhere(path) as other:
        with pytest.raises(BuildError, match="^busy with it$"), held_alone(path, "busy with it"):
            pass
        other.send_signal(number)
        other.wait(60)
        with held_alone(path, "busy"):
            pass


def test_the_lock_leaves_no_file_behind_and_does_not_change_what_it_holds(path):
    with held_alone(path, "busy"):
        pass
    with held_alone(path, "busy"):
        assert [p.name for p in path.parent.iterdir()] == ["held"]
    assert path.is_dir() or path.read_bytes() == b"contents"


def test_the_lock_is_held_against_this_process_too_and_given_back_after_an_error(path):
    with pytest.raises(ZeroDivisionError), held_alone(path, "busy"):
        with pytest.raises(BuildError), held_alone(path, "busy"):
            pass
        raise ZeroDivisionError
    with held_alone(path, "busy"):
        pass
