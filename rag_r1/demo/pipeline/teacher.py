"""A rule-based teacher for the demo world, behind an OpenAI-compatible endpoint on loopback.

It stands in for the large model of RAG-R1's first step (arXiv 2507.02962). `RuleTeacher` knows what a
question asks for, searches for each of these facts, and answers. A known share of its answers is wrong: it
then names something else of the same type. Which questions these are, and which it searches for in parallel,
is drawn from hashes, so it is the same in every run and whatever the order of the requests. If a fact is not
in the observations, it answers `unknown`.

`TeacherServer` serves the teacher. As chat endpoints do, it ends at the first stop string and leaves that
out. A request that is not a conversation about a known question is answered with 400 and the reason.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer
from rag_r1.demo.traces.turns import answer_turn, conclude, entity_value_text, search_turn
from rag_r1.demo.traces.writer import rounds_of
from rag_r1.demo.world import INDEPENDENT, Lookup, Question
from rag_r1.rollouts.requests import seeded_fraction

#: What the teacher answers if it has not found a fact.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class RuleTeacher:
    """Writes the turns of a teacher by rule. `wrong`: share of questions that are answered wrongly;
    `parallel`: share of questions about independent facts that are searched for in one turn; `seed`: that of
    both draws."""

    questions: Sequence[Question]
    wrong: float = 0.3
    parallel: float = 0.0
    seed: int = 1

    def is_right(self, question: Question) -> bool:
        """Whether the teacher answers the question rightly, if its searches return the facts."""
        return seeded_fraction(self.seed, "right", question.id) >= self.wrong

    def rounds(self, question: Question) -> list[list[Lookup]]:
        """The facts that each of the teacher's searches looks up."""
        return rounds_of(question, seeded_fraction(self.seed, "parallel", question.id) < self.parallel)

    def turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The next turn of a conversation: the prompt, and then turns and observations. Raises LookupError
        for a question that it does not know."""
        question = self.question_of(messages)
        observations = [message["content"] for message in messages[1:] if message["role"] == "user"]
        rounds = self.rounds(question)
        facts = [fact for facts in rounds[: len(observations)] for fact in facts]
        if len(observations) < len(rounds):
            return search_turn(question, facts, rounds[len(observations)])
        text = "\n".join(observations)
        if any(fact.value not in text for fact in facts):
            return answer_turn("", UNKNOWN)
        # The generator is not used: `conclude` draws only if facts are missing.
        thought, answer = conclude(question, facts, random.Random(0), entity_value_text)
        return answer_turn(thought, answer if self.is_right(question) else self.wrong_answer(question))

    def question_of(self, messages: Sequence[Mapping[str, str]]) -> Question:
        """The question of a prompt that ends with `Question: ...`. Raises LookupError for any other
        prompt."""
        text = messages[0]["content"].rpartition("Question: ")[2].strip() if messages else ""
        try:
            return self._by_text[text]
        except KeyError:
            raise LookupError(
                f"the first message does not ask a question of this world: {text[:80]!r}"
            ) from None

    def wrong_answer(self, question: Question) -> str:
        """Another name or year of the right type; the same one in every call."""
        if question.kind == "comparison":
            return next(fact.entity for fact in question.lookups if fact.entity != question.gold)
        answer_facts = question.lookups if question.kind in INDEPENDENT else question.lookups[-1:]
        return " and ".join(self._another_value(fact, question.id) for fact in answer_facts)

    def _another_value(self, fact: Lookup, key: str) -> str:
        """A value of the same relation, drawn by a hash of `key` and the entity."""
        candidates = [value for value in self._values[fact.relation] if value != fact.value] or [UNKNOWN]
        return candidates[int(seeded_fraction(self.seed, "other", f"{key}/{fact.entity}") * len(candidates))]

    @cached_property
    def _by_text(self) -> dict[str, Question]:
        return {question.text: question for question in self.questions}

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """Relation -> its values in all questions."""
        values: dict[str, set[str]] = {}
        for question in self.questions:
            for fact in question.lookups:
                values.setdefault(fact.relation, set()).add(fact.value)
        return {relation: sorted(distinct) for relation, distinct in values.items()}


def completion(text: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the chat API to a request: `text` up to the first of its stop strings."""
    stops = body.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.partition(stop)[0]
    prompt_text = "".join(message["content"] for message in body["messages"])
    usage = {"prompt_tokens": len(prompt_text.split()), "completion_tokens": len(text.split())}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    model = body.get("model")
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


@dataclass
class TeacherServer(LoopbackServer):
    """The teacher at `{url}/v1/chat/completions`."""

    teacher: RuleTeacher

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            return web.json_response(completion(self.teacher.turn(body["messages"]), body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
