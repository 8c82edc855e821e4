"""Builds an index, and runs a retrieval server for it as a child process.

This is the real server, in its own process and used over HTTP, since `rag_r1` and `retrieval_server` share no
code. It ends with its parent. Of the secrets in the environment it gets only the token of its clients
(rag_r1/system/child_environments.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from rag_r1.runs.errors import RunError
from rag_r1.system.child_environments import server_environment
from rag_r1.system.child_processes import (
    NotReadyError,
    bind_to_parent,
    child_process,
    free_port,
    last_lines,
    wait_until_ready,
)
from rag_r1.tools.retrieval.options import TOKEN_VARIABLE


def build_index(
    corpus: Path, out: Path, *options: str, more_corpora: Sequence[Path] = (), timeout_s: float = 600
) -> Path:
    """Build the index folder `out` from the files `corpus` and `more_corpora`; returns it. `options` are
    those of `rag-r1 index build`. Raises RunError if building fails, or takes more than `timeout_s`
    seconds."""
    module = (sys.executable, "-m", "retrieval_server.build_index")
    command = [*module, "--corpus", str(corpus), *map(str, more_corpora), "--out", str(out), *options]
    command, environment = bind_to_parent(command), server_environment()
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
    except subprocess.TimeoutExpired as error:
        remedy = "build it with `rag-r1 index build`, and serve it with `rag-r1 index serve`"
        raise RunError(f"the index of {corpus} was not built within {timeout_s:g} s: {remedy}") from error
    if process.returncode:
        output = last_lines(process.stdout + process.stderr, 15)
        raise RunError(f"building the index of {corpus} failed:\n{output}")
    return out


def check_served_index(index: Path, flag: str) -> None:
    """Raise RunError, which names `flag`, for a folder without the manifest of an index."""
    if not (index / "manifest.json").is_file():
        raise RunError(
            f"{flag} {index} has no manifest.json: give the folder of a finished index (`rag-r1 index build`)"
        )


@contextmanager
def retrieval_process(index: Path, log: Path, *options: str, wait_s: float = 300) -> Iterator[str]:
    """Serve `index` on a free loopback port for the length of the block; yields the address. To be called
    from the main thread, as `child_process`. Raises RunError, with the end of the log, if the server is not
    ready within `wait_s` seconds, and OSError if the log cannot be written."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["-m", "retrieval_server.start_retrieval", "--index", str(index), "--port", str(port)]
    # It runs in its own session, since Ctrl-C is for the caller, who may have searches to finish.
    with child_process([*arguments, *options], server_environment(TOKEN_VARIABLE), log) as process:
        try:
            wait_until_ready(process, lambda: _is_ready(port), wait_s, name="the retrieval server", log=log)
        except NotReadyError as error:
            raise RunError(str(error)) from error
        yield url


def _is_ready(port: int) -> bool:
    """Return whether the server at this port of the loopback interface reports that it is ready."""
    # This connection uses no proxy of the environment, which could not reach the server.
    with closing(HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
