"""The demo's evaluation: words that the command understands, and a retrieval server that is slow."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from rag_r1.command_line import read_arguments
from rag_r1.demo.evaluation import NO_CACHE, delayed, evaluation
from rag_r1.evaluation.evaluate import EvalArguments


@pytest.mark.parametrize(
    ("protocol", "topk", "response"), [("rag_r1_sq", 2, 416), ("rag_r1_mq", 2, 416), ("r1_searcher", 3, 448)]
)
def test_the_words_have_the_limits_of_the_demos_recipes(protocol, topk, response):
    words = evaluation(
        Path("m"), Path("q.parquet"), protocol, "http://u", Path("o"), "--in-flight", "1", NO_CACHE
    )
    given = read_arguments(EvalArguments, words, description="")
    assert (given.protocol, given.in_flight, given.max_response_tokens) == (protocol, 1, response)
    assert {f"rag_r1.retriever.topk={topk}", "rag_r1.agent.max_turns=3", NO_CACHE} <= set(given.overrides)
    assert "{question}" in Path(given.prompt).read_text()


class Backend(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.dumps({"asked": json.loads(asked), "path": self.path}).encode())

    def do_GET(self):
        self._answer(b"{}")

    def _answer(self, body: bytes):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused):
        pass


@pytest.fixture
def backend():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_each_search_waits_at_least_so_long_and_is_answered_as_it_was(backend):
    with delayed(backend, 0.1) as url:
        started = time.monotonic()
        answer = httpx.post(f"{url}/retrieve", json={"queries": ["a"]}, trust_env=False)
        assert time.monotonic() - started >= 0.1
        assert answer.json() == {"asked": {"queries": ["a"]}, "path": "/retrieve"}
        assert httpx.get(f"{url}/ready", trust_env=False).json() == {}


def test_searches_do_not_wait_for_one_another(backend, monkeypatch):
    """None is answered before all have arrived."""
    together = threading.Barrier(8)
    monkeypatch.setattr(Backend, "do_POST", lambda self: (together.wait(60), self._answer(b"{}")))
    with delayed(backend, 0.01) as url, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(httpx.post, f"{url}/retrieve", trust_env=False, timeout=90) for _ in range(8)]
        assert {one.result().status_code for one in asked} == {200}


def test_a_server_that_is_away_is_an_error_of_the_server():
    with delayed("http://127.0.0.1:9", 0.0) as url:
        assert httpx.post(f"{url}/retrieve", json={}, trust_env=False).status_code == 502
