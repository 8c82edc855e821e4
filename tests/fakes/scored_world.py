"""A small world in which training data for a retriever can be made: an agent that reads, a judge, over HTTP.

The agent (reading_policy.py) searches for the facts of a question and answers rightly if each stands in a
passage that it was shown. So a candidate is correct if and only if it holds the fact that its search was for.
The judge knows the facts, too; `mood` makes it reply otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import Question, World, demo_protocol, make_questions, make_world, to_row
from rag_r1.rollouts.requests import seeded_fraction
from tests.fakes.judge_server import JudgeServer, case_of
from tests.fakes.reading_policy import ReadingPolicy

#: Options of `rag-r1 retriever data` for so small a world.
FEW = ("--negatives", "3")

#: A reply of the judge made into another one: (case, reply, attempt from 0) -> reply; None: status 500.
Mood = Callable[[dict[str, Any], str, int], str | None]


@dataclass
class DescribedPolicy(ReadingPolicy):
    """With a retrieval server that tells its encoder's `separator`, if it has one. `thinks`: before each
    search but the first it writes down what it searched for before. `breaks`: for which prompts the model
    gives no answer."""

    separator: str | None = None
    thinks: bool = False
    breaks: Callable[[str], bool] | None = None

    async def _complete(self, request: web.Request) -> web.Response:
        prompt = self.tokenizer.decode((await request.json())["prompt"])
        if self.breaks is not None and self.breaks(prompt):
            return web.json_response({"error": {"message": "broken"}}, status=500)
        return await super()._complete(request)

    def _turn(self, question: Question, context: str) -> str:
        text, searched = super()._turn(question, context), context.count("<search>")
        if self.thinks and searched and text.startswith("<search>"):
            return f"<think> {question.lookups[searched - 1].entity} </think>{text}"
        return text

    async def _ready(self, request: web.Request) -> web.Response:
        if self.separator is None:
            return await super()._ready(request)
        body = {"separator": self.separator, "max_length": 512, "query_prefix": "", **self.described}
        return web.json_response(body)


@dataclass
class ScoredWorld:
    """What runs, and the words that a command needs for it."""

    policy: ReadingPolicy
    judge: JudgeServer
    world: World
    questions: Sequence[Question]
    data: Path

    def words(self, out: Path, *more: object, judged: bool = True, **flags: object) -> list[str]:
        """The words after `rag-r1 retriever data`; a flag that is None is left out."""
        values: dict[str, object] = {
            "data": self.data,
            "base_url": self.policy.url,
            "model": "policy",
            "tokenizer": policy_path("rag_r1_sq"),
            "protocol": "rag_r1_sq",
            "retriever_url": self.policy.url,
            "judge_url": self.judge.base if judged else None,
            "judge_model": "judge" if judged else None,
            "out": out,
            "in_flight": 8,
            "judge_in_flight": 4 if judged else None,
            "retries": 1,
            "backoff_s": 0.01,
            **flags,
        }
        options = (
            (f"--{name.replace('_', '-')}", value) for name, value in values.items() if value is not None
        )
        return [*(str(word) for pair in options for word in pair), *map(str, more)]


@contextmanager
def scored_world(
    folder: Path, tokenizer: Any, count: int = 6, mood: Mood | None = None, separator: str | None = None
) -> Iterator[ScoredWorld]:
    """Serve a world of `count` questions for the length of the block."""
    world = make_world(3, "test", people=30, places=12)
    questions = make_questions(world, count, 3, kinds=("one_hop", "bridge"))
    protocol = demo_protocol("rag_r1_sq")
    data = folder / "questions.parquet"
    write_rows(data, [to_row(question, i, "test", protocol) for i, question in enumerate(questions)])

    def reply(body: dict[str, Any]) -> str | int:
        case = case_of(body)
        said = _said(case) if mood is None else mood(case, _said(case), body["seed"])
        return judge.failure if said is None else said

    policy = DescribedPolicy.of(tokenizer, questions, world.passages, separator=separator)
    with policy, JudgeServer(reply) as judge:
        yield ScoredWorld(policy, judge, world, questions, data)


def _said(case: dict[str, Any]) -> str:
    """The judge's reply: the sub-answers of searches, or the scores of passages. A passage about the entity
    that is searched for gets 90 to 100, by its text."""
    if "searches" in case:
        return json.dumps([f"about {search['query']}" for search in case["searches"]])
    return json.dumps(
        [
            90 + int(10 * seeded_fraction(0, "score", passage["text"]))
            if case["query"] in passage["text"]
            else 5
            for passage in case["passages"]
        ]
    )


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts_of(path: Path) -> dict[str, str]:
    """The text of the passages of a file, by id."""
    return {row["id"]: row["contents"] for row in lines(path)}
