"""A teacher behind a real HTTP server that answers by rule (rag_r1/demo/pipeline/teacher.py) and fails at
known rates; and a retrieval server over the same world.

The teacher searches for the facts that a question needs, one after the other, and then answers. What goes
wrong is drawn from hashes, so it is the same in every run: some questions are answered wrongly; some requests
are refused (429 with Retry-After, 500), answered with something malformed, left unanswered, or cut off, at
their first attempts; and for a few questions every request fails.

`log` is what the server saw: `{"event": "received" | "answered", "request": sha256, ...}` in order, and the
marks that a test sets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer
from rag_r1.demo.pipeline.teacher import RuleTeacher, completion
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import Question, make_questions, make_world
from rag_r1.rollouts.requests import seeded_fraction
from tests.fakes.openai_server import chat, is_first_request
from tests.fakes.retriever import results

DEAD_RATE, FAULT_RATE = 0.02, 0.25
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
class Teacher(LoopbackServer):
    """Both servers. `calm`: nothing fails."""

    questions: Sequence[Question]
    passages: Sequence[dict[str, str]]
    latency_s: float = 0.02
    calm: bool = False
    log: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    busy: int = 0

    @classmethod
    def of_world(cls, seed: int, count: int, **options: Any) -> Teacher:
        """A teacher for so many questions of a new world."""
        world = make_world(seed, "train", people=150, places=40)
        return cls(make_questions(world, count, seed), world.passages, **options)

    def is_right(self, question: Question) -> bool:
        """Does the teacher answer it rightly, if it comes to an answer?"""
        return self._rules.is_right(question)

    def is_dead(self, question: Question) -> bool:
        """Does every request about it fail?"""
        return not self.calm and seeded_fraction(2, "dead", question.id) < DEAD_RATE

    def fault(self, question: Question, request: str, attempt: int) -> str | None:
        """What goes wrong with an attempt (from 0) of a request."""
        if self.calm:
            return None
        if self.is_dead(question):
            return "500"
        if attempt > 1 or seeded_fraction(3, "fault", f"{request}{attempt}") >= FAULT_RATE:
            return None
        # Hanging costs the client its time limit, so it is rare.
        kind = FAULTS[int(seeded_fraction(4, "kind", f"{request}{attempt}") * len(FAULTS))]
        rare = kind == "hang" and seeded_fraction(5, "rare", f"{request}{attempt}") > 0.3
        return "500" if rare else kind

    def mark(self, name: str) -> None:
        """Put a mark into the log."""
        self.log.append({"event": name})

    def __post_init__(self) -> None:
        self._rules = RuleTeacher(self.questions)
        self._attempts: Counter[str] = Counter()
        self._search = WorldSearch(self.passages, 3).results

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/retrieve", self._retrieve)

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await request.json()
        matches = self._search(body["queries"])
        return web.json_response(
            results(([(d.id, d.contents) for d in documents] for documents in matches), score=1.0)
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if is_first_request(json.loads(raw)):
            return web.json_response(chat("Hello"))
        name = hashlib.sha256(raw).hexdigest()
        self.keys.add(request.headers.get("Authorization"))
        body = await request.json()
        question = self._rules.question_of(body["messages"])
        attempt, self._attempts[name] = self._attempts[name], self._attempts[name] + 1
        fault = self.fault(question, name, attempt)
        entry = {"request": name, "question": question.id, "fault": fault}
        self.log.append({"event": "received", **entry})
        if fault == "hang":
            await asyncio.sleep(60)
        self.busy += 1
        try:
            await asyncio.sleep(self.latency_s * (0.5 + seeded_fraction(6, "latency", name)))
            response = self._answer(body, fault)
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
            self.log.append({"event": "answered", **entry})
            return response
        except ConnectionError:  # the client was killed
            self.log.append({"event": "answered", **entry})
            return web.Response()
        finally:
            self.busy -= 1

    def _answer(self, body: dict[str, Any], fault: str | None) -> web.StreamResponse:
        answer = completion(self._rules.turn(body["messages"]), body)
        answer["usage"] = {"prompt_tokens": 100, "completion_tokens": 10}
        (choice,) = answer["choices"]
        if fault == "429":
            return web.json_response({"error": "slow down"}, status=429, headers={"Retry-After": "0"})
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "bad JSON":
            return web.Response(text='{"choices": [', content_type="application/json")
        if fault == "no choices":
            answer["choices"] = []
        if fault == "empty content":
            choice["message"]["content"] = ""
        if fault == "wrong types":
            choice["message"] = [choice["message"]["content"]]
        return web.json_response(answer)
