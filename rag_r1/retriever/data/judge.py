"""A judge that replies with a JSON list, which is validated and requested again if it is wrong.

The judge is any OpenAI-compatible chat endpoint (evaluation/judge.py has its arguments). The texts that it
judges are data, and its reply must be the list alone (rag_r1/inference/strict_replies.py). A list of another
length, or with one wrong entry, is refused as a whole, and the judge is asked again: first at temperature 0,
then at a higher one with another seed. So one malformed score costs a request rather than the round. What has
no list in the end is tried again by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

from rag_r1.evaluation.judge import JudgeArguments, judge_request
from rag_r1.inference.client import Endpoint
from rag_r1.inference.strict_replies import RETRY_TEMPERATURE, StrictReplies, json_of
from rag_r1.runs.response_cache import ResponseCache

Value = TypeVar("Value")

#: Tokens of a reply, unless --judge-body says otherwise.
MAX_REPLY_TOKENS = 1000


def instructions(name: str) -> str:
    """The text of `prompts/NAME.txt`."""
    return (files("rag_r1.retriever.data") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class RelevanceJudge(StrictReplies):
    """See the top of the module."""

    def __init__(self, args: JudgeArguments, endpoint: Endpoint, cache: ResponseCache):
        super().__init__("judge", endpoint, cache)
        self.args = args

    async def ask_list(
        self, name: str, prompt: str, case: Mapping[str, Any], parse: Callable[[list[Any]], Value], tries: int
    ) -> Value | None:
        """The result of `parse` for the judge's list about a case; see `ask`. `prompt`: the instructions;
        `tries`: attempts of earlier starts."""

        def make(attempt: int) -> tuple[dict[str, Any], int]:
            sampling = {"temperature": RETRY_TEMPERATURE if attempt else 0.0, "seed": attempt}
            return judge_request(self.args, prompt, case, MAX_REPLY_TOKENS, **sampling)

        return await self.ask(f"{name}/{tries}", make, lambda reply: parse(read_list(reply)), tries)


def read_list(reply: str) -> list[Any]:
    """The JSON list that a reply is. Raises ValueError if it is anything else, or has more beside it."""
    value = json_of(reply)
    if not isinstance(value, list):
        raise ValueError(f"a JSON {type(value).__name__}, not a list")
    return value


def read_scores(values: list[Any], count: int) -> list[int]:
    """Exactly `count` whole numbers from 0 to 100. Raises ValueError for anything else."""
    if len(values) != count or not all(type(value) is int and 0 <= value <= 100 for value in values):
        raise ValueError(f"not {count} whole numbers from 0 to 100")
    return values


def read_texts(values: list[Any], count: int) -> list[str]:
    """Exactly `count` texts, none of them empty. Raises ValueError for anything else."""
    if len(values) != count or not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(f"not {count} texts")
    return [value.strip() for value in values]
