"""A policy behind HTTP that plays as the teacher of own_teacher.py does: it searches for what the question is
about, and answers from what stands in its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rag_r1.demo.traces.turns import turn
from tests.fakes.openai_server import completion
from tests.fakes.own_teacher import UNKNOWN, wanted
from tests.fakes.question_models import Facts, answered
from tests.fakes.scripted_vllm import Policy


@dataclass
class OwnPolicy(Policy):
    """`searches`: whether it can; without, it answers at once."""

    @classmethod
    def of(cls, tokenizer: Any, searches: bool = True) -> OwnPolicy:
        return cls(tokenizer, {}, lambda *unused: True, searches=searches)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        prompt = self.tokenizer.decode(body["prompt"])
        question = prompt.rpartition("Question: ")[2].partition("<|im_end|>")[0].strip()
        text = self._turn(question, prompt)
        ids = self.tokenizer(text, add_special_tokens=False).input_ids[: body["max_tokens"]]
        return web.json_response(completion(body, text, ids))

    def _turn(self, question: str, context: str) -> str:
        answer = answered(question, [context])
        searched = context.rpartition("<|im_start|>assistant")[2]
        if answer is None and self.searches:
            for entity in wanted(question, Facts.of([context])):
                if f"<search> {entity}" not in searched:
                    return turn("I need to search.", "search", entity)
        return turn("I know enough.", "answer", answer or UNKNOWN)
