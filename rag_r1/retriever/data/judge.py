"""A judge that replies with a JSON list, which is validated and requested again if it is wrong.

The judge is any OpenAI-compatible chat endpoint (evaluation/judge.py has its arguments). The texts that it
judges are data, and its reply must be the list alone (rag_r1/inference/strict_replies.py). A list of another
length, or with one wrong entry, is refused as a whole, and the judge is asked again: first at temperature 0,
then at a higher one with another seed. So one malformed score costs a request rather than the round. What has
no list in the end is tried again by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rag_r1.evaluation.judge import JudgeArguments, judge_request
from rag_r1.inference.client import Endpoint
from rag_r1.inference.strict_replies import RETRY_TEMPERATURE, StrictReplies, json_of
from rag_r1.runs.response_cache import ResponseCache

Value = TypeVar("Value")

#: Tokens of a reply, unless --judge-body says otherwise.
MAX_REPLY_TOKENS = 1000


class ListJudge(StrictReplies):
    """Asks a judge model for a JSON list, and asks again if the reply is not one."""

    def __init__(self, args: JudgeArguments, endpoint: Endpoint, cache: ResponseCache):
        super().__init__("judge", endpoint, cache)
        self.args = args

    async def ask_list(
        self,
        name: str,
        prompt: str,
        case: Mapping[str, Any],
        parse: Callable[[list[Any]], Value],
        earlier_attempts: int,
    ) -> Value | None:
        """The result of `parse` for the judge's list about a case; None if no attempt gave a list that
        `parse` accepts. `name`: of the request; `prompt`: the instructions; `earlier_attempts`: those of
        earlier starts, which are not repeated. Raises EngineFailure if the endpoint does not answer."""

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            t = RETRY_TEMPERATURE if attempt else 0.0
            return judge_request(self.args, prompt, case, MAX_REPLY_TOKENS, temperature=t, seed=attempt)

        request_id = f"{name}/{earlier_attempts}"
        return await self.ask(request_id, make_request, lambda text: parse(read_list(text)), earlier_attempts)


def read_list(reply: str) -> list[Any]:
    """The JSON list that a reply consists of. Raises ValueError for any other reply."""
    value = json_of(reply)
    if not isinstance(value, list):
        raise ValueError(f"a JSON {type(value).__name__}, not a list")
    return value


def check_scores(values: list[Any], count: int) -> list[int]:
    """Returns the values. Raises ValueError unless they are `count` whole numbers from 0 to 100."""
    if len(values) != count or not all(type(value) is int and 0 <= value <= 100 for value in values):
        raise ValueError(f"not {count} whole numbers from 0 to 100")
    return values


def check_texts(values: list[Any], count: int) -> list[str]:
    """Returns the values without outer white space. Raises ValueError unless they are `count` texts, none of
    them empty."""
    if len(values) != count or not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(f"not {count} texts")
    return [value.strip() for value in values]
