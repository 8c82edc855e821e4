"""A policy behind HTTP that searches for the facts of a demo question and answers from what it was shown; and
the retrieval server over the same world.

It knows no fact: an answer is right only if every fact stands in a passage of its context. With `knows` it
searches nothing and answers everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import Question
from tests.fakes.openai_server import completion
from tests.fakes.retriever import results
from tests.fakes.scripted_vllm import Policy


@dataclass
class ReadingPolicy(Policy):
    """See the top of the module. `topks`: what the searches asked for."""

    questions: Sequence[Question] = ()
    passages: Sequence[dict[str, str]] = ()
    knows: bool = False
    topks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, tokenizer: Any, questions: Sequence[Question], passages: Sequence[dict[str, str]], **options):
        golds = {question.text: question.gold for question in questions}
        return cls(tokenizer, golds, lambda *unused: True, questions=questions, passages=passages, **options)

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.topks.append(body["topk"])
        matches = WorldSearch(self.passages, body["topk"]).results(body["queries"])
        return web.json_response(results([(d.id, d.contents) for d in documents] for documents in matches))

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = self.tokenizer.decode(body["prompt"])
        questions = [question for question in self.questions if question.text in prompt]
        if not questions:  # the probe for token ids
            return self._answered(body, "<answer> none </answer>")
        self.bodies.append(body)
        question = max(questions, key=lambda question: len(question.text))
        return self._answered(body, self._turn(question, prompt.partition(question.text)[2]))

    def _turn(self, question: Question, context: str) -> str:
        searched = context.count("<search>")
        if not self.knows and searched < len(question.lookups):
            return f"<search> {question.lookups[searched].entity} </search>"
        passages = re.split(r"Doc \d", context)
        complete = all(
            any(f.entity in passage and f.value in passage for passage in passages) for f in question.lookups
        )
        return f"<answer> {question.gold if self.knows or complete else 'nobody'} </answer>"

    def _answered(self, body: dict[str, Any], text: str) -> web.Response:
        ids = self.tokenizer(text, add_special_tokens=False).input_ids[: body["max_tokens"]]
        return web.json_response(completion(body, text, ids))
