"""Starts the processes that retrieval_server.py measures: servers on free ports, and stages of the ceilings.

`ours`, `search_r1` and `stages` return context managers, which end their processes at the end of the block.
Only that benchmark loads this module; it has no command line.
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
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Seconds until a server must answer; the original reads its whole index and corpus first.
_START_S = 600


@contextmanager
def running(*command: object, **options: Any) -> Iterator[subprocess.Popen]:
    """Run a process of this Python in the project's folder, and end it with SIGTERM.

    `options` are further arguments of `subprocess.Popen`.
    """
    process = subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, text=True, **options)
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


def settings(text: str) -> tuple[dict[str, str], list[str]]:
    """Split a value of --ours into variables of the environment (NAME=VALUE) and the flags after them.

    Raises ValueError if a word before the flags is not NAME=VALUE, or if a quotation mark is not closed.
    """
    words = shlex.split(text)
    first_flag = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    if wrong := [word for word in words[:first_flag] if "=" not in word]:
        raise ValueError(f"{wrong[0]} is neither NAME=VALUE nor behind a flag")
    return dict(word.split("=", 1) for word in words[:first_flag]), words[first_flag:]


def ours(index: Path, device: str | None, own_settings: str = "") -> AbstractContextManager[str]:
    """Run our server on an index; yields its address. `own_settings` is a value of --ours."""
    environment, flags = settings(own_settings)
    script = ("retrieval_server/start_retrieval.py", "--index", index.resolve(), "--cache-size", 0)
    return serving(*script, *_device_flags(device), *flags, environment=environment)


def search_r1(checkout: Path, index: Path, device: str | None) -> AbstractContextManager[str]:
    """Run Search-R1's server from a checkout on an index; yields its address."""
    script = ("benchmarks/search_r1_server.py", "--checkout", checkout.resolve(), "--index", index.resolve())
    return serving(*script, *_device_flags(device))


def _device_flags(device: str | None) -> tuple[str, ...]:
    return ("--device", device) if device else ()


@contextmanager
def stages(
    index: Path, questions: list[str], batch: int, topk: int, work: Path, device: str | None = None
) -> Iterator[dict[str, Stages]]:
    """Run the stages of the ceilings, each in its process; yields them by the name of the ceiling.

    With an exact index there are two ceilings: the encoder with our search, and the encoder with FAISS's own.
    The searches start when the encoder has written the vectors. `device` is that of the encoder; None means a
    GPU if torch sees one. Raises SystemExit if a stage does not start.
    """
    (work / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    script = ["benchmarks/retrieval_stages.py", "--index", index.resolve(), "--batch", batch, "--topk", topk]
    script += ["--questions", work / "questions.json", "--vectors", work / "vectors.npy"]
    script += [*_device_flags(device), "--stage"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as contexts:

        def start(stage: str) -> subprocess.Popen:
            process = contexts.enter_context(running(*script, stage, **pipes))
            _wait(process)
            return process

        encode = start("encode")
        ceilings = {"encoder + search": Stages([encode, start("search")])}
        if _is_exact(index):
            ceilings["encoder + FAISS itself"] = Stages([encode, start("faiss")])
        yield ceilings


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
        by_stage = []
        for process in self._processes:
            print("go", file=process.stdin, flush=True)
            by_stage.append(json.loads(process.stdout.readline()))
        return [sum(batch_seconds) for batch_seconds in zip(*by_stage, strict=True)]


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
    except OSError:
        return False
