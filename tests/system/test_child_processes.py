"""A server that a command starts ends with the command, and does not get its keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_r1.system.child_environments import environment_without_secrets, server_environment
from rag_r1.system.child_processes import (
    _ENDS_WITH_PARENT,
    SAME_GROUP,
    Ending,
    NotReadyError,
    bind_to_parent,
    child_process,
    end,
    last_lines,
    start,
    wait_until_ready,
)
from rag_r1.tools.retrieval.local_server import build_index
from tests.fakes.waiting import is_running, wait_until

ROOT = Path(__file__).parents[2]
#: A command with a server that sleeps, and a process of that server's own.
COMMAND = """
import os, sys, time
from pathlib import Path
from rag_r1.system.child_processes import child_process
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
with child_process(["-c", SERVER], os.environ, Path(sys.argv[1])) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


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
        wait_until(lambda: not is_running(server))
        if number != signal.SIGKILL:  # vLLM's own processes end with their server
            wait_until(lambda: not any(map(is_running, workers)))
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
        [sys.executable, "-c", _ENDS_WITH_PARENT, str(os.getpid() + 1), "echo", "up"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "up" not in done.stdout and "has ended" in done.stderr


#: A command that serves documents, and one of its tools, until it is ended.
SERVES = """
import asyncio, os, sys, time
from pathlib import Path
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.tools import make_tool

async def main():
    entry = {"tool": "mcp", "command": [sys.executable, sys.argv[2]], "call": "add", "env": []}
    tool = make_tool("add", entry)
    await tool.call([{"a": 1, "b": 2}])
    print("ready", flush=True)
    await asyncio.sleep(600)

with retrieval_process(Path(sys.argv[1]), Path(sys.argv[1]).with_suffix(".log")):
    asyncio.run(main())
"""
KEYS = {"OPENAI_API_KEY": "sk-secret", "MY_OWN_ENDPOINT": "sk-secret", "CHAT_TOKEN": "sk-secret"}


def descendants(pid: int) -> list[int]:
    pids = children(pid)
    return [*pids, *(further for child in pids for further in descendants(child))]


def environment(pid: int) -> dict[str, str]:
    """The environment with which a process was started."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@linux
@pytest.mark.slow
def test_a_killed_command_leaves_no_server_behind_and_none_has_its_keys(tmp_path):
    pytest.importorskip("mcp")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "Ulm lies on the Danube."}\n')
    build_index(corpus, tmp_path / "index", "--backend", "bm25")
    command = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVES,
            str(tmp_path / "index"),
            str(ROOT / "tests/fakes/small_mcp_server.py"),
        ],
        env={**os.environ, **KEYS, "RETRIEVAL_TOKEN": "of-its-clients", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    left: list[int] = []
    try:
        assert command.stdout.readline() == "ready\n"
        left = descendants(command.pid)
        output = [environment(pid) for pid in left]
        assert len(output) >= 2 and not any("sk-secret" in one.values() for one in output)
        assert "of-its-clients" in [one.get("RETRIEVAL_TOKEN") for one in output]
        command.kill()
        command.wait()
        wait_until(lambda: not any(map(is_running, left)))
    finally:
        command.kill()
        command.wait()
        for pid in left:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def test_servers_get_what_they_need_and_nothing_secret(monkeypatch):
    needed = {
        "PATH": "/bin",
        "HF_HOME": "h",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": "p",
        "RAG_R1_PIPELINE": "o",
    }
    secret = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "DB_PASSWORD",
        "RAG_R1_MCP_TOKEN",
        "apikey",
        "PGPASSWORD",
        "MYSQL_PWD",
        "GITHUB_PAT",
        "SENTRY_DSN",
        "AZURE_STORAGE_CONNECTION_STRING",
    ]
    monkeypatch.setattr(os, "environ", {**needed, "OF_SOMEONE": "1", **dict.fromkeys(secret, "sk-secret")})
    assert server_environment() == needed
    assert server_environment("GITHUB_TOKEN") == {**needed, "GITHUB_TOKEN": "sk-secret"}
    kept = {**needed, "OF_SOMEONE": "1", "HF_TOKEN": "sk-secret"}
    assert environment_without_secrets(["HF_TOKEN"]) == kept
    assert environment_without_secrets(["HF_TOKEN"], hidden=["HF_TOKEN", "OF_SOMEONE"]) == needed
    monkeypatch.setattr(
        os,
        "environ",
        {"TOKENIZERS_PARALLELISM": "false", "MKL_CBWR": "AUTO", "KEYBOARD": "de", "PWD": "/", "OLDPWD": "/"},
    )
    assert environment_without_secrets([]) == dict(os.environ)


@pytest.mark.parametrize("address", ["http://user:hunter2@127.0.0.1:1/x", "https://ghp_1234@example.org/x"])
def test_addresses_with_a_secret_are_kept_from_servers_unless_they_lead_out(monkeypatch, address):
    secret = ["DATABASE_URL", "RAG_R1_OF_SOMEONE", "PIP_INDEX_URL"]
    monkeypatch.setattr(os, "environ", {"https_proxy": address, **dict.fromkeys(secret, address)})
    assert server_environment() == {}
    assert environment_without_secrets([]) == {"https_proxy": address}


def test_a_program_that_does_not_exist_fails_as_such(tmp_path):
    assert bind_to_parent(["no-such-program", "x"]) == ["no-such-program", "x"]
    assert bind_to_parent(["bin/no", "x"], tmp_path) == ["bin/no", "x"]
    assert bind_to_parent(["sh", "-c", "true"])[-3:] == ["sh", "-c", "true"]


class Told(BaseException):
    """What the caller's handler raises."""


def test_a_handler_of_the_callers_own_goes_first(tmp_path):
    def tell(*unused):
        raise Told

    before = signal.signal(signal.SIGTERM, tell)
    try:
        with (
            pytest.raises(Told),
            child_process(["-c", "import time; time.sleep(600)"], os.environ, tmp_path / "log") as process,
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        assert process.returncode == -signal.SIGTERM and signal.getsignal(signal.SIGTERM) is tell
    finally:
        signal.signal(signal.SIGTERM, before)


#: Ignores the polite signals, and has a child of its own; says when both are there.
STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@linux
@pytest.mark.parametrize("asks_group", [False, True])
def test_a_child_that_does_not_end_when_asked_is_killed_with_its_group(tmp_path, asks_group):
    log = tmp_path / "log"
    with log.open("w") as output:
        process = start([sys.executable, "-c", STUBBORN], output)
    while not (said := log.read_text()).endswith("\n"):
        time.sleep(0.01)
    end(process, Ending(((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1)), asks_group))
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not is_running(int(said)))


@pytest.mark.usefixtures("interruptible")
def test_a_child_of_the_same_group_is_ended_alone():
    process = start(["sleep", "600"], own_session=False)
    assert os.getpgid(process.pid) == os.getpgid(0)
    end(process, SAME_GROUP)
    assert process.returncode == -signal.SIGINT
    end(process, SAME_GROUP)  # one that has ended


def test_a_child_that_inherits_ignored_interrupts_is_asked_in_another_way(tmp_path):
    script = (
        "import signal, sys\n"
        "from rag_r1.system.child_processes import SAME_GROUP, end, start\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as a shell does for its background
        "child = 'import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));'\n"
        "child += 'print(1, flush=True); signal.pause()'\n"
        "import subprocess\n"
        "process = subprocess.Popen([sys.executable, '-c', child], stdout=subprocess.PIPE)\n"
        "process.stdout.readline()\n"
        "end(process, SAME_GROUP)\n"
        "print(process.returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "7", done.stderr


def test_a_server_is_awaited_until_it_is_ready_ends_or_is_late(tmp_path):
    log, signals = tmp_path / "log", iter([False, False, True])
    with child_process(
        ["-c", "import time; print('up', flush=True); time.sleep(600)"], os.environ, log
    ) as it:
        wait_until_ready(it, lambda: next(signals), 60, name="it", log=log, every_s=0.01)
        while not log.read_text():
            time.sleep(0.01)
        with pytest.raises(NotReadyError, match=r"it was not ready after 0.05 s; the end of .*log:\nup$"):
            wait_until_ready(it, lambda: False, 0.05, name="it", log=log, every_s=0.01)
    with child_process(["-c", "import sys; sys.exit('the reason')"], os.environ, log) as it:
        with pytest.raises(NotReadyError, match=r"it ended with status 1; the end of .*log:\nthe reason$"):
            wait_until_ready(it, lambda: False, 60, name="it", log=log, every_s=0.01)


def test_the_last_lines_of_a_log_that_is_no_text(tmp_path):
    (tmp_path / "log").write_bytes(b"one\ntwo\n\xff three\n\n")
    assert last_lines(tmp_path / "log", 2) == "two\n\ufffd three"
    assert last_lines("a\nb\n", 1) == "b"
