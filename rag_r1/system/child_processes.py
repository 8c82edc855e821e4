"""Starts child processes that end with their parent and do not get its secrets.

`child_process` keeps a child for as long as a block runs: it ends with the block, also through an error,
Ctrl-C or SIGTERM of this process. If this process is killed (SIGKILL), Linux ends the child
(PR_SET_PDEATHSIG), so a port, the memory of a GPU and an index in memory are free for the next start.
`bind_to_parent` gives a command that ends in the same way, for children that something else starts.

`server_environment` has what our own servers need; `environment_without_secrets` has all but what is secret
by its name, or is an address with a password, for programs whose variables we do not know (vLLM).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Makes Linux send SIGTERM to this process when its parent ends, then becomes the command.
_ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the command that started this server has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""
#: Seconds for an orderly end of a child.
_END_S = 30.0
#: What our servers need of the environment: where things are, and how much of the machine they use.
_NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|TMPDIR|TEMP|TMP|HOSTNAME|VIRTUAL_ENV|CI"
    r"|LC_.+|LD_.+|PYTHON.+|CONDA_.+|XDG_.+|SSL_CERT_.+|COV.+|RAG_R1_.+|MALLOC_.+"
    r"|HF_.+|TRANSFORMERS_.+|SENTENCE_TRANSFORMERS_.+|TOKENIZERS_.+|TORCH.+|PYTORCH_.+"
    r"|OMP_.+|GOMP_.+|KMP_.+|MKL_.+|OPENBLAS_.+|BLIS_.+|NUMEXPR_.+|RAYON_.+|ATEN_.+|ONEDNN_.+|DNNL_.+|OV_.+"
    r"|OPENVINO_.+|FAISS_.+|CUDA.+|NVIDIA_.+|NCCL_.+|RAY_.+|JAVA_HOME|JDK_.+|JVM_.+|JAX_.+"
)
_SECRET = re.compile(
    r"(.*_)?(API|ACCESS|PRIVATE)?(KEYS?|TOKENS?|SECRETS?|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|BEARER|JWT|PAT|DSN)"
    r"(_.*)?|.*(PASSWORD|PASSWD|_PWD|_PASS|CONNECTION_STRING|WEBHOOK_URL)(_.*)?",
    re.IGNORECASE,
)
#: An address with a password, such as a database's; of proxies and of the Hub's mirror it is needed.
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_NEEDED_ADDRESS = re.compile(r".*_proxy|HF_ENDPOINT", re.IGNORECASE)


def server_environment(*tokens: str) -> dict[str, str]:
    """What a server of ours needs of this process's environment. `tokens`: the variables with secrets that
    it needs, too."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in tokens or (_NEEDED.fullmatch(name) and not _is_secret(name, value))
    }


def environment_without_secrets(keep: Collection[str], without: Collection[str] = ()) -> dict[str, str]:
    """This process's environment without what is secret by its name or is an address with a password, except
    `keep`, and without the variables `without`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in without and (name in keep or not _is_secret(name, value))
    }


def _is_secret(name: str, value: str) -> bool:
    has_password = _PASSWORD_IN_ADDRESS.search(value) and not _NEEDED_ADDRESS.fullmatch(name)
    return bool(_SECRET.fullmatch(name) or has_password)


def bind_to_parent(command: Sequence[str], folder: Path | str | None = None) -> list[str]:
    """A command that is ended when the thread that starts it ends, or its process; `folder`: where it is
    started. A program that does not exist is left as it is, to fail as such."""
    path = os.path.join(folder or "", command[0]) if os.sep in command[0] else command[0]
    if shutil.which(path) is None:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *command]


@contextmanager
def child_process(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen]:
    """Python with these arguments, in a process group of its own, while the block runs; `log` gets what it
    prints. Call it from the main thread: otherwise SIGTERM of this process is not handled here, and the child
    ends with the thread."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output, _exit_on_sigterm():
        process = subprocess.Popen(
            bind_to_parent([sys.executable, *arguments]),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """End the child, and then whatever is left of its group, before the group's number can be another's."""
    if process.poll() is None:
        process.terminate()
        deadline = time.monotonic() + _END_S
        while not _has_exited(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _has_exited(pid: int) -> bool:
    """Whether a child has ended; it remains a zombie, which keeps its number."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises SystemExit, so that what must be closed is closed; a handler of
    the caller's own goes first, and may raise something else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        if callable(before):
            before(number, frame)
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
