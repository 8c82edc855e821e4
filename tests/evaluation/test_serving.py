"""The server of a model ends with what started it, and says why it did not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_r1.evaluation.run_folder import RunError
from rag_r1.evaluation.serving import _ENDS_WITH_PARENT, running, vllm_server

ROOT = Path(__file__).parents[2]
#: A command with a server that sleeps, and a process of that server's own.
COMMAND = """
import os, sys, time
from pathlib import Path
from rag_r1.evaluation.serving import running
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
with running(["-c", SERVER], os.environ, Path(sys.argv[1])) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def gone(pid: int) -> bool:
    """Wait until a process has ended; false if it has not after a long time."""
    for _ in range(1000):
        if not is_running(pid):
            return True
        time.sleep(0.02)
    return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")


@linux
@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_the_command_whatever_ends_that(tmp_path, number):
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path / "log")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    workers: list[int] = []
    try:
        server = int(command.stdout.readline())
        while not (workers := children(server)):
            assert is_running(server)
            time.sleep(0.02)
        command.send_signal(number)
        command.wait(60)
        assert gone(server)
        if number != signal.SIGKILL:  # vLLM's own processes end with their server
            assert all(map(gone, workers))
        assert command.returncode == {signal.SIGTERM: 143}.get(number, command.returncode)
    finally:
        command.kill()
        command.wait()
        for worker in workers:
            if is_running(worker):
                os.kill(worker, signal.SIGKILL)


@linux
def test_a_server_whose_command_has_ended_before_it_began_does_not_start():
    done = subprocess.run(
        [sys.executable, "-c", _ENDS_WITH_PARENT, str(os.getpid() + 1), "-c", "print('up')"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "up" not in done.stdout and "has ended" in done.stderr


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path):
    pytest.importorskip("vllm")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"vLLM ended with status \d+; the end of .*vllm.log:\n"):
        with vllm_server(tmp_path, tmp_path / "vllm.log"):
            pass


class Told(BaseException):
    """What the caller's handler raises."""


def test_a_handler_of_the_callers_own_goes_first(tmp_path):
    def tell(*unused):
        raise Told

    before = signal.signal(signal.SIGTERM, tell)
    try:
        with (
            pytest.raises(Told),
            running(["-c", "import time; time.sleep(600)"], os.environ, tmp_path / "log") as process,
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        assert process.returncode == -signal.SIGTERM and signal.getsignal(signal.SIGTERM) is tell
    finally:
        signal.signal(signal.SIGTERM, before)
