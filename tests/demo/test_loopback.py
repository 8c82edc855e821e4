"""Proxies on loopback: a search that takes longer, and a server that is away."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rag_r1.demo.loopback import DelayingProxy, Proxy


class Backend(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.dumps({"asked": json.loads(body), "path": self.path}).encode())

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


@pytest.mark.slow
def test_each_search_waits_at_least_so_long_and_is_answered_as_it_was(backend):
    with DelayingProxy(backend, 0.1) as proxy:
        started = time.monotonic()
        answer = httpx.post(f"{proxy.url}/retrieve", json={"queries": ["a"]}, trust_env=False)
        assert time.monotonic() - started >= 0.1
        assert answer.json() == {"asked": {"queries": ["a"]}, "path": "/retrieve"}
        assert httpx.get(f"{proxy.url}/ready", trust_env=False).json() == {}


@pytest.mark.slow
def test_searches_do_not_wait_for_one_another(backend, monkeypatch):
    """None is answered before all have arrived."""
    together = threading.Barrier(8)
    monkeypatch.setattr(Backend, "do_POST", lambda self: (together.wait(60), self._answer(b"{}")))
    with DelayingProxy(backend, 0.01) as proxy, ThreadPoolExecutor(8) as pool:
        requests = [
            pool.submit(httpx.post, f"{proxy.url}/retrieve", trust_env=False, timeout=90) for _ in range(8)
        ]
        assert {request.result().status_code for request in requests} == {200}


def test_a_server_that_is_away_is_an_error_of_the_server():
    with Proxy("http://127.0.0.1:9") as proxy:
        assert httpx.post(f"{proxy.url}/retrieve", json={}, trust_env=False).status_code == 502
