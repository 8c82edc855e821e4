"""What breaks things: a proxy that spoils or delays a retrieval server's answers, and a server that is killed
and comes back.

The server behind them is the real one, in a process of its own, over an index of the demo's world.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from rag_r1.demo.loopback import Proxy
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.tools.retrieval.local_server import build_index

ROOT = Path(__file__).resolve().parents[2]

FAULTS = ("delayed", "500", "truncated", "shape")
SHAPES = (b"[]", b"null", b'{"result": {}}', b'{"result": [[{"document": 7}]]}', b'{"result": []}')


class FaultyProxy(Proxy):
    """Passes requests on to `backend` and spoils a share of the answers.

    `rate` of the answers to /retrieve is, by chance, delayed by `delay_s`, an error 500, cut in the middle,
    or JSON of another shape. `counts` tells how many of each there were, and how often the backend was away.
    """

    def __init__(self, backend: str, rate: float, delay_s: float, faults: Sequence[str] = FAULTS):
        super().__init__(backend)
        self.rate, self.delay_s, self.faults = rate, delay_s, faults
        self.counts: Counter[str] = Counter()
        self._random = random.Random(0)

    async def handle(self, request: web.Request) -> web.Response:
        spoil = request.path == "/retrieve" and self._random.random() < self.rate
        fault = self._random.choice(self.faults) if spoil else "none"
        self.counts[fault] += 1
        if fault == "500":
            return web.Response(status=500, text="<html>")
        answer = await self.forward_request(request)
        if answer.status == 502:
            self.counts["away"] += 1
            return answer
        if fault == "delayed":
            await asyncio.sleep(self.delay_s)
        if fault == "truncated":
            answer.body = answer.body[: len(answer.body) // 2]
        if fault == "shape":
            answer.body = self._random.choice(SHAPES)
        return answer


class MortalServer:
    """A retrieval server in a process of its own, always on the same port. Started by `start`, killed by
    `kill`."""

    def __init__(self, index: Path, log: Path, port: int):
        self.url, self.log, self.kills = f"http://127.0.0.1:{port}", log, 0
        self._command = [sys.executable, str(ROOT / "retrieval_server" / "start_retrieval.py")]
        self._command += ["--index", str(index), "--port", str(port)]
        self._process: subprocess.Popen | None = None

    def start(self, wait_s: float = 120) -> None:
        with self.log.open("a") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + wait_s
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the retrieval server did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self.kills += 1

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=2):
                return True
        except OSError:
            return False


@pytest.fixture(scope="session")
def demo_index(tmp_path_factory) -> Path:
    """A folder with the demo's data in `data` and a BM25 index of its corpus in `index`."""
    folder = tmp_path_factory.mktemp("chaos")
    write_demo(folder / "data", demo_protocol("rag_r1_mq"), seed=1)
    build_index(folder / "data" / "corpus.jsonl", folder / "index", "--backend", "bm25")
    return folder


@pytest.fixture
def make_server(demo_index, tmp_path) -> Iterator[Callable[[], MortalServer]]:
    """A running MortalServer; all of them are killed when the test ends."""
    yield from _servers(demo_index, tmp_path)


@pytest.fixture(scope="module")
def make_module_server(demo_index, tmp_path_factory) -> Iterator[Callable[[], MortalServer]]:
    """The same for the length of a module."""
    yield from _servers(demo_index, tmp_path_factory.mktemp("server"))


def _servers(demo_index: Path, folder: Path) -> Iterator[Callable[[], MortalServer]]:
    servers: list[MortalServer] = []

    def make() -> MortalServer:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        servers.append(MortalServer(demo_index / "index", folder / "server.log", port))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def make_proxy() -> Callable[..., FaultyProxy]:
    """FaultyProxy, a context manager."""
    return FaultyProxy
