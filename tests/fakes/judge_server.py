"""A judge behind a real HTTP server, which replies to a request or to the case in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.openai_server import OpenAIServer


@dataclass
class JudgeServer(OpenAIServer):
    """`failure`: the status where `of_cases` has no verdict."""

    failure: int = 500

    @classmethod
    def of_cases(cls, verdict: Callable[[dict[str, Any]], str | None], **options: Any) -> JudgeServer:
        """A judge whose replies come from the case, which is an object in the last message."""

        def reply(body: dict[str, Any]) -> str | int:
            said = verdict(case_of(body))
            return server.failure if said is None else said

        server = cls(reply, **options)
        return server

    @property
    def cases(self) -> list[dict[str, Any]]:
        """What was to be judged."""
        return [case_of(body) for body in self.bodies]


def case_of(body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(body["messages"][-1]["content"])
