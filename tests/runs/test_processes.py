"""The processes of a pipeline: what fails is told, and nothing that was started is left running."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from rag_r1.runs import processes
from rag_r1.runs.errors import RunError
from tests.fakes.waiting import is_running, wait_until

#: Starts a process of its own in another session, tells its id, and waits.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def started(code: str, mark: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, processes.MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_what_a_killed_pipeline_has_left_behind_is_ended_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    parent, other = started(PARENT, str(out)), started("import time; time.sleep(60)", f"{out}-2")
    try:
        child = int(parent.stdout.readline())
        parent.kill()  # as the pipeline itself, which is not asked
        parent.wait()
        for process in (child, other.pid):  # a process has no environment before it has begun
            while str(out).encode() not in open(f"/proc/{process}/environ", "rb").read():
                time.sleep(0.01)
        assert processes.find_leftovers(out) == [child]
        (tmp_path / "link").symlink_to(tmp_path)
        assert processes.find_leftovers(tmp_path / "link" / "out") == [child]
        assert processes.stop_leftovers(out) == 1
        assert not is_running(child) and is_running(other.pid)
        assert processes.stop_leftovers(out) == 0
    finally:
        for process in (parent, other):
            process.kill()
            process.wait()


def test_the_files_of_leftovers_are_free_once_they_are_ended(tmp_path):
    """A process of 400 MiB holds its lock for some 20 ms after its environment can no longer be read."""
    lock = tmp_path / "lock"
    code = f"import fcntl, time; file = open({str(lock)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    code += "; memory = b'1' * (400 << 20); print(flush=True); time.sleep(60)"
    with started(code, str(tmp_path / "out")) as holder:
        holder.stdout.readline()
        try:
            assert processes.stop_leftovers(tmp_path / "out") == 1
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            holder.kill()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that `run_module` finds."""

    def make(code: str) -> str:
        (tmp_path / "a_step.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        return "a_step"

    return make


def test_a_command_that_fails_is_told_with_the_end_of_its_log(tmp_path, module):
    name = module("import sys; print('words'); sys.exit('the reason')")
    with pytest.raises(RunError) as failed:
        processes.run_module(name, log=tmp_path / "log")
    assert "a_step ended with status 1" in str(failed.value) and "the reason" in str(failed.value)
    assert "the pipeline's command again" in str(failed.value)


def test_what_a_failed_command_leaves_in_its_session_is_ended_and_a_good_ones_servers_stay(tmp_path, module):
    code = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid); sys.exit(%d)"
    # A status of two digits: Python would take a file of the same size and second for the same one.
    with pytest.raises(RunError):
        processes.run_module(module(code % 33), log=tmp_path / "failed")
    wait_until(lambda: not is_running(int((tmp_path / "failed").read_text().split()[0])))
    processes.run_module(module(code % 0), log=tmp_path / "good")
    child = int((tmp_path / "good").read_text().split()[0])
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_a_command_inherits_the_mark_and_gets_its_words(tmp_path, module, monkeypatch):
    monkeypatch.setenv(processes.MARK, "")
    processes.mark_children(tmp_path)
    name = module(f"import os, sys; print(os.environ['{processes.MARK}'], sys.argv[1:], os.environ['MORE'])")
    processes.run_module(name, "--a", 1, tmp_path, log=tmp_path / "log", MORE="more")
    assert (tmp_path / "log").read_text() == f"{tmp_path} ['--a', '1', '{tmp_path}'] more\n"


@pytest.mark.usefixtures("interruptible")  # else the command ends twenty seconds later, by SIGTERM
def test_a_command_is_ended_when_the_pipeline_is_interrupted(tmp_path, module):
    name = module(f"import os, time; open('{tmp_path}/id', 'w').write(str(os.getpid())); time.sleep(60)")
    pid_file = tmp_path / "id"

    def interrupt() -> None:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.run_module(name, log=tmp_path / "log", watch=interrupt)
    assert not is_running(int(pid_file.read_text()))


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="no_such_program cannot be started: No such file"):
        processes.run_and_wait(["no_such_program"], log=tmp_path / "log")
