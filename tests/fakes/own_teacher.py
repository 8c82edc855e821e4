"""A teacher for a whole run: it writes questions, verifies them, and plays traces, seeing the requests only.

Questions are written and read as in question_models.py. In a conversation it searches for what the question
is about and does not stand in the observations yet, and answers when the observations say it; the turns are
those that the demo's policy knows the words of. Its server lists one model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from rag_r1.demo.pipeline.teacher import completion
from rag_r1.demo.traces.turns import turn
from rag_r1.demo.world import World
from tests.fakes.openai_server import OpenAIServer, Reply
from tests.fakes.question_models import Facts, answered, meant, read, teach

UNKNOWN = "unknown"
#: What stands between the words of a question and what they describe.
_ABOUT = (
    r"Where was (.+) born\?",
    r"In what year was (.+) born\?",
    r"When was (.+) born\?",
    r"Which river flows past (.+)\?",
    r"Who founded (.+)\?",
    r"Was (\w+ \w+) born before (\w+ \w+)\?",
    r"Were (\w+ \w+) and (\w+ \w+) born in the same year\?",
    r"Who was born earlier, (\w+ \w+) or (\w+ \w+)\?",
)


def play(messages: Sequence[Mapping[str, str]]) -> str:
    """The next turn of a conversation."""
    question = messages[0]["content"].rpartition("Question: ")[2].strip()
    seen = [message["content"] for message in messages[1:] if message["role"] == "user"]
    searched = [m["content"] for m in messages[1:] if m["role"] == "assistant"]
    answer = answered(question, seen)
    if answer is not None:
        return turn("I know enough.", "answer", answer)
    for entity in wanted(question, Facts.of(seen)):
        if not any(entity in text for text in searched):
            return turn("I need to search.", "search", entity)
    return turn("I know enough.", "answer", UNKNOWN)


def wanted(question: str, facts: Facts) -> list[str]:
    """What has to be looked up next."""
    for pattern in _ABOUT:
        if match := re.fullmatch(pattern, question):
            return [entity for words in match.groups() for entity in _next(words, facts)]
    return [question]


def _next(words: str, facts: Facts) -> list[str]:
    """The entity of a description that is not known yet: the innermost first."""
    if entities := meant(words, facts):
        return entities
    inner = re.sub(r"^(?:the birthplace of |the founder of )", "", words, count=1)
    return _next(inner, facts) if inner != words else [words]


def reply(body: dict[str, Any], errors: float = 0.0) -> Reply:
    """The reply to any request of a run."""
    try:
        case = json.loads(body["messages"][-1]["content"])
    except ValueError:
        return completion(play(body["messages"]), body)
    return teach(body)[0] if "task" in case else read(body, errors)


def write_documents(folder: Path, world: World) -> Path:
    """A Markdown file for each passage of a world, with its title as the heading."""
    folder.mkdir(parents=True)
    for number, passage in enumerate(world.passages):
        title, text = passage["contents"].split("\n", 1)
        name = title.strip('"')
        (folder / f"{number:03d}.md").write_text(f"# {name}\n\n{text}\n")
    return folder


class ListingServer(OpenAIServer):
    """A server that lists one model."""

    model = "scripted"

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/v1/models", self._models)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model}]})


class OwnTeacher(ListingServer):
    """The server; `model` is the only one that it lists."""

    def __init__(self, model: str = "scripted") -> None:
        super().__init__(reply)
        self.model = model
