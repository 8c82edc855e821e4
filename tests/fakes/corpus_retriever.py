"""A retrieval server of a few passages, in a thread of the test: real HTTP, with a list of what was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Stub:
    """Answers every query with `passages` (id -> contents), in order; refuses those that contain `refuse`."""

    def __init__(self, passages: Mapping[str, str]):
        self.passages = dict(passages)
        self.refuse: str | None = None
        self.refused = 0
        self.asked: list[str] = []
        self.url = ""

    def answer(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        queries = body["queries"]
        if self.refuse and any(self.refuse in query for query in queries):
            self.refused += 1
            return 422, {"error": "refused"}
        self.asked += queries
        documents = [
            {"document": {"id": own_id, "contents": contents}, "score": 1.0}
            for own_id, contents in self.passages.items()
        ]
        return 200, {"result": [documents[: body["topk"]] for _ in queries]}


@contextmanager
def retriever_stub(passages: Mapping[str, str]) -> Iterator[Stub]:
    """Serve the passages on a free port for the length of the block."""
    stub = Stub(passages)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, told = stub.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
