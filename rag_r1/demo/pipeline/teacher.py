"""A rule-based teacher for the demo world, behind an OpenAI-compatible endpoint on loopback.

It stands in for the large model of RAG-R1's first step (arXiv 2507.02962). `RuleTeacher` knows which facts a
question needs, searches for each of them, and answers. It reads the observations only before the answer: if
one of the facts is in none of them, it answers `unknown`. A known share of its answers is wrong: they name
something else of the same type. Hashes decide which questions are answered wrongly, and which are searched
for in parallel, so the traces do not depend on the order of the requests.

`TeacherServer` serves the teacher. Like other chat endpoints, it ends a reply before the first stop string. A
request that is not a conversation about a known question is answered with status 400 and the reason.
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

#: The teacher's answer if it has not found a fact.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class RuleTeacher:
    """Writes the turns of a teacher by rule."""

    #: All questions that the teacher knows.
    questions: Sequence[Question]
    #: Share of the questions that are answered wrongly.
    wrong: float = 0.3
    #: Share of the questions about independent facts that are searched for in one turn.
    parallel: float = 0.0
    #: Random seed of both choices.
    seed: int = 1

    def is_right(self, question: Question) -> bool:
        """Return whether the teacher answers a question correctly when its searches return the facts."""
        return seeded_fraction(self.seed, "right", question.id) >= self.wrong

    def rounds(self, question: Question) -> list[list[Lookup]]:
        """Return the facts that each of the teacher's searches looks up."""
        return rounds_of(question, seeded_fraction(self.seed, "parallel", question.id) < self.parallel)

    def turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Write the next turn of a conversation, which consists of the prompt, turns and observations.

        Raises LookupError if the teacher does not know the question.
        """
        question = self.question_of(messages)
        observations = [message["content"] for message in messages[1:] if message["role"] == "user"]
        rounds = self.rounds(question)
        facts = [fact for facts in rounds[: len(observations)] for fact in facts]
        if len(observations) < len(rounds):
            return search_turn(question, facts, rounds[len(observations)])
        text = "\n".join(observations)
        if any(fact.value not in text for fact in facts):
            return answer_turn("", UNKNOWN)
        # The generator is not used, because `conclude` draws only if facts are missing.
        thought, answer = conclude(question, facts, random.Random(0), entity_value_text)
        return answer_turn(thought, answer if self.is_right(question) else self.wrong_answer(question))

    def question_of(self, messages: Sequence[Mapping[str, str]]) -> Question:
        """Find the question of a prompt that ends with `Question: ...`.

        Raises LookupError if the prompt has another form, or the question is not known.
        """
        text = messages[0]["content"].rpartition("Question: ")[2].strip() if messages else ""
        try:
            return self._by_text[text]
        except KeyError:
            message = f"the first message does not ask a question of this world: {text[:80]!r}"
            raise LookupError(message) from None

    def wrong_answer(self, question: Question) -> str:
        """Return another name or year of the right type, which is the same in every call."""
        if question.kind == "comparison":
            return next(fact.entity for fact in question.lookups if fact.entity != question.gold)
        answer_facts = question.lookups if question.kind in INDEPENDENT else question.lookups[-1:]
        return " and ".join(self._another_value(fact, question.id) for fact in answer_facts)

    def _another_value(self, fact: Lookup, key: str) -> str:
        """Choose another value of the same relation by a hash of `key` and the entity."""
        candidates = [value for value in self._values[fact.relation] if value != fact.value] or [UNKNOWN]
        return candidates[int(seeded_fraction(self.seed, "other", f"{key}/{fact.entity}") * len(candidates))]

    @cached_property
    def _by_text(self) -> dict[str, Question]:
        """The questions by their texts."""
        return {question.text: question for question in self.questions}

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """The values of each relation in all questions."""
        values: dict[str, set[str]] = {}
        for question in self.questions:
            for fact in question.lookups:
                values.setdefault(fact.relation, set()).add(fact.value)
        return {relation: sorted(distinct) for relation, distinct in values.items()}


def completion(text: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Make the chat API's answer to the request `body`: `text` up to the first of its stop strings."""
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
    """Serves a teacher at `{url}/v1/chat/completions`."""

    teacher: RuleTeacher

    def add_routes(self, app: web.Application) -> None:
        """Send chat requests to the teacher."""
        app.router.add_post("/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.Response:
        """Answer a chat request."""
        try:
            body = await request.json()
            return web.json_response(completion(self.teacher.turn(body["messages"]), body))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
