"""A stub that speaks the documented JSON of all search APIs, over real HTTP on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

from retrieval_server.web.engines import ENGINES
from retrieval_server.web.source import WebSource

KEY = "tvly-SECRET-0123456789"


def results(query: str, number: int) -> list[tuple[str, str, str]]:
    """(address, title, snippet) of what the stub finds; the texts hold markup, and signs like it."""
    return [
        (
            f"https://example.org/{query}/{rank}".replace(" ", "_"),
            f"{query} <b>no.</b> {rank} &amp; more",
            f"Snippet {rank} about <strong>{query}</strong>: if a < b, use List<String>.",
        )
        for rank in range(1, number + 1)
    ]


@dataclass(frozen=True)
class Api:
    """The documented JSON of an engine's answers."""

    #: The field of a request with the number of results, if it has one, and their number without it.
    count: str
    usual: int
    #: The keys under which the results lie, and what address, title and snippet are called there.
    place: str
    names: str
    #: What else an answer and a result have.
    around: dict
    more: Callable[[int, str], dict] = lambda rank, snippet: {}

    def answer(self, query: str, fields: dict) -> dict:
        hits = results(query, int(fields.get(self.count, self.usual)))
        rows = [
            dict(zip(self.names.split(), texts, strict=True)) | self.more(rank, texts[2])
            for rank, texts in enumerate(hits)
        ]
        outer, *inner = self.place.split(".")
        for key in reversed(inner):
            rows = {key: rows, "totalEstimatedMatches": 31}
        return {**self.around, outer: rows}


APIS = {
    "serper": Api("num", 10, "organic", "link title snippet", {"peopleAlsoAsk": [], "credits": 1}),
    "bing": Api("count", 10, "webPages.value", "url name snippet", {"_type": "SearchResponse"}),
    "tavily": Api("max_results", 5, "results", "url title content", {"answer": None, "images": []}),
    "brave": Api("count", 20, "web.results", "url title description", {"type": "search"}),
    "searxng": Api("", 20, "results", "url title content", {"number_of_results": 0, "answers": []}),
    "bocha": Api(
        "count",
        10,
        "data.webPages.value",
        "url name snippet",
        {"code": 200, "msg": None},
        lambda rank, snippet: {"summary": snippet if rank else None},
    ),
}


@dataclass
class StubRequest:
    """One request as it reached the stub."""

    method: str
    path: str
    headers: dict[str, str]
    fields: dict
    query: str


@dataclass
class Stub:
    """``script``: (status, headers, body) for the next requests; then it answers as the API does."""

    api: str
    port: int = 0
    requests: list[StubRequest] = field(default_factory=list)
    script: list[tuple[int, dict, bytes]] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/search"

    @property
    def queries(self) -> list[str]:
        return [request.query for request in self.requests]

    def respond(self, method: str, target: str, headers: dict, body: bytes) -> tuple[int, dict, bytes]:
        parts = urlsplit(target)
        fields = json.loads(body) if body else dict(parse_qsl(parts.query))
        query = fields[ENGINES[self.api].query_field]
        with self.lock:
            self.requests.append(StubRequest(method, parts.path, headers, fields, query))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            scripted = self.script.pop(0) if self.script else None
        self.gate.wait(30)
        with self.lock:
            self.at_once -= 1
        return scripted or (200, {}, json.dumps(APIS[self.api].answer(query, fields)).encode())


@pytest.fixture
def stub(request) -> Iterator[Stub]:
    """The stub of Serper's API, or of the one that a test is parametrised with; its gate is open."""
    state = Stub(getattr(request, "param", "serper"))
    state.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            with state.lock:
                state.connections += 1
            super().setup()

        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, body = state.respond(self.command, self.path, headers, self.rfile.read(length))
            try:
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | more).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client had gone: time-out tests
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    state.gate.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(monkeypatch) -> dict[str, str]:
    """Every engine's key, and no proxy between us and the stub."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return {engine.key_variable: KEY for engine in ENGINES.values() if engine.key_variable}


@pytest.fixture
def open_source(stub, environment) -> Callable[..., WebSource]:
    """open_source(options=None, replay=..., record=...): the engine of the stub."""

    def open_(options=None, **files) -> WebSource:
        return WebSource.open(stub.api, environment, options, url=stub.url, **files)

    return open_
