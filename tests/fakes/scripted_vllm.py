"""A completions endpoint in vLLM's form, behind a real HTTP server: token ids in, token ids out.

It answers a question, rightly or wrongly as `fate(question, temperature, seed)` says, so what a run must
come to can be computed from the seeds of its asks. With `searches` it first searches for the question, if it
has not been searched for yet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer
from tests.fakes.retriever import results


@dataclass
class Policy(LoopbackServer):
    """A context manager. `golds`: right answers by question; `passages`: what the retrieval server finds,
    (id, contents); `corpus`: the hash that it names, if it describes itself, and `described` what else;
    `also`: queries beside the question; `rounds`: turns in which it searches so;
    `ids`: whether token ids are returned; `context`: its length, if the server names it; `latency_s`: of a
    completion; `thought`: before each action. Each token has the log-prob -0.5."""

    tokenizer: Any
    golds: Mapping[str, str]
    fate: Callable[[str, float, int], bool]
    searches: bool = False
    passages: Sequence[tuple[str, str]] = ()
    corpus: str | None = None
    described: dict[str, Any] = field(default_factory=dict)
    also: Sequence[str] = ()
    rounds: int = 1
    ids: bool = True
    context: int | None = None
    latency_s: float = 0.0
    thought: str = ""
    bodies: list[dict] = field(default_factory=list)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)

    async def _retrieve(self, request: web.Request) -> web.Response:
        queries = (await request.json())["queries"]
        return web.json_response(results([self.passages] * len(queries), score=1.0))

    async def _ready(self, request: web.Request) -> web.Response:
        body = {"corpus_sha256": self.corpus, **self.described}
        return web.json_response(body, status=200 if self.corpus else 404)

    async def _models(self, request: web.Request) -> web.Response:
        if self.context is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"data": [{"id": "policy", "max_model_len": self.context}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.1"}, status=404 if self.context is None else 200)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["max_tokens"] > 1:  # not the probe
            self.bodies.append(body)
        prompt = self.tokenizer.decode(body["prompt"])
        question = max((q for q in self.golds if q in prompt), key=len, default="")
        right = question and self.fate(question, body["temperature"], body.get("seed", 0))
        text = f"<answer> {self.golds[question] if right else 'wrong'} </answer>"
        turns = prompt.rpartition("<|im_start|>assistant")[2]
        if self.searches and turns.count("</information>") < self.rounds:
            text = f"<search> {','.join((question, *self.also))} </search>"
        if self.thought:
            text = f"<think> {self.thought} </think> {text}"
        await asyncio.sleep(self.latency_s)
        ids = self.tokenizer(text, add_special_tokens=False).input_ids[: body["max_tokens"]]
        choice = {"text": text, "finish_reason": "stop", "stop_reason": text.split()[-1]}
        if self.ids:
            choice["token_ids"] = ids
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        if body.get("stream"):
            return await self._stream(request, ids, choice, usage)
        return web.json_response({"choices": [choice], "usage": usage})

    async def _stream(self, request: web.Request, ids: list[int], choice: dict, usage: dict):
        """The same, a token at a time."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, token in enumerate(ids):
            last = number == len(ids) - 1
            piece = {**(choice if last else {}), "text": self.tokenizer.decode([token]), "token_ids": [token]}
            if "logprobs" in choice:
                piece["logprobs"] = {"token_logprobs": [-0.5]}
            await response.write(f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response
