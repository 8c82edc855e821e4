"""A judge behind a real HTTP server: an OpenAI-compatible chat endpoint that replies as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

#: From the judged case (question, accepted_answers, given_answer) to the reply; None: status `failure`.
Reply = Callable[[dict[str, Any]], str | None]


@dataclass
class ScriptedJudge:
    """`failure`: the status where there is no reply; `cases`: what was asked, in order; `most`: most requests
    at a time; `keys`: the headers seen."""

    reply: Reply
    pause: Callable[[], None] = lambda: None
    url: str = ""
    failure: int = 500
    cases: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    most: int = 0
    _now: int = 0
    _lock: Lock = field(default_factory=Lock)

    def answer(self, body: dict[str, Any]) -> str | None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            case = json.loads(body["messages"][-1]["content"])
            self.cases.append(case)
            self.bodies.append(body)
        self.pause()
        with self._lock:
            self._now -= 1
        return self.reply(case)


@contextmanager
def scripted_judge(reply: Reply, pause: Callable[[], None] = lambda: None) -> Iterator[ScriptedJudge]:
    """Serve on a free port for the length of the block."""
    judge = ScriptedJudge(reply, pause)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            judge.keys.add(self.headers.get("Authorization"))
            said = judge.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 1}
            data = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(judge.failure if said is None else 200)
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
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
