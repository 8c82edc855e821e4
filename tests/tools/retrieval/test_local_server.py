"""The retrieval server that a command builds an index for and starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval import local_server
from tests.fakes.json_server import JsonStub


@pytest.mark.parametrize("answer, ready", [({}, True), ((503, "{}"), False)])
def test_whether_a_server_is_ready_is_asked_without_the_proxy_of_the_environment(monkeypatch, answer, ready):
    """A cluster's proxy does not reach this machine, and the wait would end with its time limit."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with JsonStub(lambda _: answer) as server:
        assert local_server._is_ready(int(server.url.rpartition(":")[2])) == ready


def test_an_index_that_takes_too_long_is_an_error_with_its_remedy(monkeypatch):
    def slow(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(local_server.subprocess, "run", slow)
    with pytest.raises(RunError, match="the index of c.jsonl was not built within 600 s: build it with"):
        local_server.build_index(Path("c.jsonl"), Path("index"))
