"""A teacher behind a real HTTP server: an OpenAI-compatible chat endpoint that knows the demo world by rule,
and fails at known rates; and a retrieval server over the same world.

The teacher searches for the facts that a question needs, one after the other, and then answers. What goes
wrong is drawn from hashes, so it is the same in every run: some questions are answered wrongly; some requests
are refused (429 with Retry-After, 500), answered with something malformed, left unanswered, or cut off, at
their first attempts; and for a few questions every request fails. The teacher leaves out the stop string, as
chat endpoints do.

`log` is what the server saw: `{"event": "received" | "answered", "request": sha256, ...}` in order, and the
marks that a test sets.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import Question, make_questions, make_world
from rag_r1.evaluation.asks import drawn

WRONG_RATE, DEAD_RATE, FAULT_RATE = 0.3, 0.02, 0.25
FAULTS = (
    "429",
    "500",
    "bad JSON",
    "no choices",
    "empty content",
    "wrong types",
    "disconnect",
    "half an answer",
    "hang",
)


@dataclass
class Teacher:
    """A context manager: the servers run in a thread of their own. `calm`: nothing fails."""

    questions: Sequence[Question]
    passages: Sequence[dict[str, str]]
    latency_s: float = 0.02
    calm: bool = False
    log: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    url: str = ""
    busy: int = 0

    @classmethod
    def of_world(cls, seed: int, count: int, **given: Any) -> Teacher:
        """A teacher for so many questions of a new world."""
        world = make_world(seed, "train", people=150, places=40)
        return cls(make_questions(world, count, seed), world.passages, **given)

    def is_right(self, question: Question) -> bool:
        """Does the teacher answer it rightly, if it comes to an answer?"""
        return drawn(1, "right", question.id) >= WRONG_RATE

    def is_dead(self, question: Question) -> bool:
        """Does every request about it fail?"""
        return not self.calm and drawn(2, "dead", question.id) < DEAD_RATE

    def fault(self, question: Question, request: str, attempt: int) -> str | None:
        """What goes wrong with an attempt (from 0) of a request."""
        if self.calm:
            return None
        if self.is_dead(question):
            return "500"
        if attempt > 1 or drawn(3, "fault", f"{request}{attempt}") >= FAULT_RATE:
            return None
        # Hanging costs the client its time limit, so it is rare.
        kind = FAULTS[int(drawn(4, "kind", f"{request}{attempt}") * len(FAULTS))]
        rare = kind == "hang" and drawn(5, "rare", f"{request}{attempt}") > 0.3
        return "500" if rare else kind

    def mark(self, name: str) -> None:
        """Put a mark into the log."""
        self.log.append({"event": name})

    def __enter__(self) -> Teacher:
        self._by_text = {question.text: question for question in self.questions}
        self._attempts: Counter[str] = Counter()
        self._search = WorldSearch(self.passages, 3).results
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *unused: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/retrieve", self._retrieve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(runner))
        self._loop.close()

    async def _end(self, runner: web.AppRunner) -> None:
        """Close the server, with the handlers that hang."""
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _retrieve(self, request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response(
            {
                "result": [
                    [{"document": {"id": d.id, "contents": d.contents}, "score": 1.0} for d in found]
                    for found in self._search(asked["queries"])
                ]
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        name = hashlib.sha256(raw).hexdigest()
        self.keys.add(request.headers.get("Authorization"))
        body = await request.json()
        question = self._by_text[body["messages"][0]["content"].rpartition("Question: ")[2].strip()]
        attempt, self._attempts[name] = self._attempts[name], self._attempts[name] + 1
        fault = self.fault(question, name, attempt)
        seen = {"request": name, "question": question.id, "fault": fault}
        self.log.append({"event": "received", **seen})
        if fault == "hang":
            await asyncio.sleep(60)
        self.busy += 1
        try:
            await asyncio.sleep(self.latency_s * (0.5 + drawn(6, "latency", name)))
            response = self._answer(body, question, fault)
            if fault in ("disconnect", "half an answer"):
                if fault == "half an answer":
                    response = web.StreamResponse(headers={"Content-Length": "1000"})
                    await response.prepare(request)
                    await response.write(b'{"choices": [{"mess')
                if request.transport is not None:
                    request.transport.close()
                return web.Response()
            await response.prepare(request)
            await response.write_eof()
            self.log.append({"event": "answered", **seen})
            return response
        except ConnectionError:  # the client was killed
            self.log.append({"event": "answered", **seen})
            return web.Response()
        finally:
            self.busy -= 1

    def _answer(self, body: dict[str, Any], question: Question, fault: str | None) -> web.StreamResponse:
        text = self._turn(body["messages"], question)
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        if fault == "429":
            return web.json_response({"error": "slow down"}, status=429, headers={"Retry-After": "0"})
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "bad JSON":
            return web.Response(text='{"choices": [', content_type="application/json")
        if fault == "no choices":
            return web.json_response({"choices": [], "usage": usage})
        if fault == "empty content":
            choice["message"]["content"] = ""
        if fault == "wrong types":
            choice["message"] = [text]
        return web.json_response({"choices": [choice], "usage": usage})

    def _turn(self, messages: list[dict[str, str]], question: Question) -> str:
        """The next turn by rule: a search for the next fact, or the answer."""
        searched = sum(message["role"] == "user" for message in messages[1:])
        if searched < len(question.lookups):
            return f"<think> I need to search. </think>\n<search> {question.lookups[searched].entity} "
        answer = question.gold if self.is_right(question) else "Nobody Atall"
        return f"<think> I know enough. </think>\n<answer> {answer} "
