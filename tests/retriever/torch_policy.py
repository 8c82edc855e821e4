"""The embedded policy in plain torch behind HTTP: a completions endpoint in vLLM's form, with token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch
from aiohttp import web
from transformers import AutoTokenizer, Qwen2ForCausalLM

from rag_r1.demo.loopback import LoopbackServer
from rag_r1.demo.policy import policy_path
from rag_r1.demo.simulate import TorchEngine
from tests.fakes.openai_server import completion


@dataclass
class TorchPolicy(LoopbackServer):
    """Greedy decoding of the demo's policy in a `dialect`. Requests that wait are generated in one batch.
    `prompts`: of the requests, as token ids."""

    dialect: str
    prompts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        folder = policy_path(self.dialect)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._engine = TorchEngine(model, self.tokenizer, temperature=0.0)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["temperature"] == 0
        self.prompts.append(body["prompt"])
        future = asyncio.ensure_future(
            self._engine.generate(body["prompt"], body["max_tokens"], body.get("stop") or ())
        )
        await asyncio.sleep(0.02)
        if self._engine.waiting:
            self._engine.flush()
        ids = (await future).token_ids
        return web.json_response(completion(body, self.tokenizer.decode(ids), ids))
