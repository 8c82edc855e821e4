"""A loop of stubs for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_r1.runs.processes import MARK
from tests.iterate.stub_loop import StubLoop, StubServer


@pytest.fixture
def server() -> StubServer:
    return StubServer()


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubLoop]:
    """A loop after two rounds, for tests that only read; `orders` are those to its server."""
    server = StubServer()
    with pytest.MonkeyPatch.context() as patch, server.run() as url:
        patch.setenv(MARK, "")
        finished = StubLoop(tmp_path_factory.mktemp("two_rounds"), url)
        assert finished.run("--rounds", "2") == 0
        finished.orders = [path.removeprefix(f"{finished.folder}/") for path in server.orders]
        yield finished


@pytest.fixture
def loop(tmp_path: Path, server: StubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubLoop]:
    monkeypatch.setenv(MARK, os.environ.get(MARK, ""))  # the loop sets it for its children
    with server.run() as url:
        yield StubLoop(tmp_path, url)
