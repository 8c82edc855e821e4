"""Starts the processes that retrieval_server.py measures: servers on free ports, and stages of the ceilings.

All functions are context managers that end their processes. Only that benchmark loads this module; it has no
command line.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Seconds until a server must answer; the original reads its whole index and corpus first.
_START_S = 600


@contextmanager
def running(*command: object, **more) -> Iterator[subprocess.Popen]:
    """Run a process of this Python in the project's folder, and end it with SIGTERM."""
    process = subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, text=True, **more)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving(*command: object, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server with `--port` on a free port; yields its address when it answers a query.

    `environment` has further variables of the process. Raises SystemExit if the server does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    variables = {**os.environ, **(environment or {})}
    with running(*command, "--port", port, stdout=subprocess.DEVNULL, env=variables) as process:
        end = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None:
                raise SystemExit(f"error: {command[0]} ended with status {process.returncode}; see above")
            if time.monotonic() > end:
                raise SystemExit(f"error: {command[0]} does not answer after {_START_S} s")
            time.sleep(0.2)
        yield url


def settings(words: str) -> tuple[dict[str, str], list[str]]:
    """Split the words of --ours into variables of the environment (NAME=VALUE) and the flags after them.

    Raises ValueError if a word before the flags is not NAME=VALUE.
    """
    parts = shlex.split(words)
    number = next((i for i, part in enumerate(parts) if part.startswith("-")), len(parts))
    if wrong := [part for part in parts[:number] if "=" not in part]:
        raise ValueError(f"{wrong[0]} is neither NAME=VALUE nor behind a flag")
    return dict(part.split("=", 1) for part in parts[:number]), parts[number:]


def ours(index: Path, device: str | None, words: str = "") -> AbstractContextManager[str]:
    """Run our server on an index; yields its address. `settings` reads the `words`."""
    environment, flags = settings(words)
    on = ("--device", device) if device else ()
    script = ("retrieval_server/start_retrieval.py", "--index", index.resolve(), "--cache-size", 0)
    return serving(*script, *on, *flags, environment=environment)


def search_r1(checkout: Path, index: Path, device: str | None) -> AbstractContextManager[str]:
    """Run Search-R1's server from a checkout on an index; yields its address."""
    on = ("--device", device) if device else ()
    script = ("benchmarks/search_r1_server.py", "--checkout", checkout.resolve(), "--index", index.resolve())
    return serving(*script, *on)


@contextmanager
def stages(
    index: Path, questions: list[str], batch: int, topk: int, work: Path, device: str | None = None
) -> Iterator[dict[str, Stages]]:
    """Run the stages of the ceilings, each in its process; yields them by the name of the ceiling.

    With an exact index there are two ceilings: the encoder with our search, and the encoder with FAISS's own.
    The searches start when the encoder has written the vectors. `device` is that of the encoder; None means a
    GPU if torch sees one.
    """
    (work / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    script = ["benchmarks/retrieval_stages.py", "--index", index.resolve(), "--batch", batch, "--topk", topk]
    script += ["--questions", work / "questions.json", "--vectors", work / "vectors.npy"]
    script += [*(("--device", device) if device else ()), "--stage"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as contexts:

        def start(stage: str) -> subprocess.Popen:
            process = contexts.enter_context(running(*script, stage, **pipes))
            _wait(process)
            return process

        encode = start("encode")
        stages = {"encoder + search": Stages([encode, start("search")])}
        if _is_exact(index):
            stages["encoder + FAISS itself"] = Stages([encode, start("faiss")])
        yield stages


def _is_exact(index: Path) -> bool:
    """Return whether an index is searched exactly."""
    # The package retrieval_server is not imported here, since this folder has a file of that name.
    dense = json.loads((index / "manifest.json").read_text(encoding="utf-8"))["dense"]
    return dense["factory"] == "Flat" and dense.get("rescoring") is None


class Stages:
    """The running stages of a ceiling."""

    def __init__(self, processes: list[subprocess.Popen]):
        self._processes = processes

    def seconds(self) -> list[float]:
        """Run all stages, one after the other, and return the seconds of each batch in all of them."""
        stages = []
        for process in self._processes:
            print("go", file=process.stdin, flush=True)
            stages.append(json.loads(process.stdout.readline()))
        return [sum(each) for each in zip(*stages, strict=True)]


def _wait(process: subprocess.Popen) -> None:
    """Wait until a stage is ready. Raises SystemExit if it does not start."""
    if process.stdout.readline().strip() != "ready":
        raise SystemExit("error: a stage of the ceiling does not start; see above")


def _answers(url: str) -> bool:
    """Return whether a server answers a query."""
    body = json.dumps({"queries": ["Is it there?"], "topk": 1, "return_scores": True}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
