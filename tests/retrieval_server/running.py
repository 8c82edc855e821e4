"""Servers, apps, engines and other code, each for the time of a test."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from retrieval_server.engine.engine import Engine
from retrieval_server.engine.metrics import IndexMetrics, Metrics
from retrieval_server.engine.options import EngineOptions
from retrieval_server.search.index_source import IndexSource
from retrieval_server.source import Source

if TYPE_CHECKING:
    from fastapi import FastAPI


ROOT = Path(__file__).parents[2]


def run_python(code: str, *args: object, **environment: str) -> str:
    """What this code prints in a process of its own, which has to end with status 0."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def python_process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this code, when it has printed a line; it is ended by closing its input."""
    command = [sys.executable, "-c", code, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.communicate()


@asynccontextmanager
async def engine_of(source: Source, metrics: IndexMetrics | None = None, **options: object):
    """An engine over this source, stopped in the end; half a minute is enough for a test."""
    metrics = metrics or Metrics().of("towns")
    engine = await Engine.start(lambda: source, EngineOptions(**options), metrics)
    try:
        async with asyncio.timeout(30):
            yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def asgi_client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app in the event loop of the test, as with uvicorn."""
    async with app.router.lifespan_context(app), asyncio.timeout(120):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            yield client


async def until(condition: Callable[[], object]) -> None:
    """Waits until this holds."""
    while not condition():
        await asyncio.sleep(0.001)


@contextmanager
def serving(load: Callable[[], IndexSource], **settings) -> Iterator:
    """A TestClient of the app, when its index is loaded."""
    from fastapi.testclient import TestClient

    from retrieval_server.server.app import create_app

    with TestClient(create_app(load, **settings), raise_server_exceptions=False) as client:
        for _ in range(3000):
            if client.get("/ready").status_code == 200:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("the index was not ready within 30 s")
        yield client


class ServerProcess:
    """start_retrieval.py in a process of its own."""

    def __init__(self, flags: list[str], environment: dict[str, str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "retrieval_server/start_retrieval.py", *flags, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
        )

    @property
    def resident(self) -> int:
        """Bytes of memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def wait_until_ready(self) -> None:
        with httpx.Client() as client:  # one: httpx.get makes one each time, which takes 50 ms of CPU
            while True:
                assert self.process.poll() is None, "the server ended"
                try:
                    if client.get(self.url + "/ready").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)


@contextmanager
def server_process(*flags: str | Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with these flags, when it is ready; it has to end with status 0."""
    server = ServerProcess([str(flag) for flag in flags], environment)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(300)
    assert server.process.returncode == 0
