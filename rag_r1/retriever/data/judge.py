"""Asks a judge model for JSON lists, validates them, and asks again if one is malformed.

The judge is any OpenAI-compatible chat endpoint (evaluation/judge.py has its arguments). The texts that it
judges are passed as data, and its reply must be the list alone (rag_r1/inference/strict_replies.py). A list
of the wrong length, or with one invalid entry, is rejected as a whole and requested again: the first attempt
is at temperature 0, the later ones at a higher temperature with another seed. So a malformed score costs one
request and not the round. If no attempt succeeds, the next run of the command tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rag_r1.evaluation.judge import JudgeArguments, judge_request
from rag_r1.inference.client import Endpoint
from rag_r1.inference.strict_replies import RETRY_TEMPERATURE, StrictReplies, json_of
from rag_r1.runs.response_cache import ResponseCache

Value = TypeVar("Value")

#: Most tokens of a reply, unless --judge-body sets another limit.
MAX_REPLY_TOKENS = 1000


class ListJudge(StrictReplies):
    """Asks a judge model for a JSON list, and repeats the request if the reply is not an acceptable one."""

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
        """Ask the judge about a case, and return the result of `parse` for its list.

        `name` identifies the request, and `prompt` has the instructions. `parse` raises ValueError for a
        list that it rejects. `earlier_attempts` is the number of attempts of earlier runs, which are not
        repeated. Returns None if `parse` accepted no reply, or if the endpoint rejects the request. Raises
        EngineFailure if the endpoint does not answer, and RunError if the disk is full.
        """

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            temp = RETRY_TEMPERATURE if attempt else 0.0
            return judge_request(self.args, prompt, case, MAX_REPLY_TOKENS, temperature=temp, seed=attempt)

        request_id = f"{name}/{earlier_attempts}"
        return await self.ask(request_id, make_request, lambda text: parse(read_list(text)), earlier_attempts)


def read_list(reply: str) -> list[Any]:
    """Return the JSON list that the whole reply consists of. Raises ValueError for any other reply."""
    value = json_of(reply)
    if not isinstance(value, list):
        raise ValueError(f"a JSON {type(value).__name__}, not a list")
    return value


def check_scores(values: list[Any], count: int) -> list[int]:
    """Return the values. Raises ValueError unless they are `count` whole numbers from 0 to 100."""
    if len(values) != count or not all(type(value) is int and 0 <= value <= 100 for value in values):
        raise ValueError(f"not {count} whole numbers from 0 to 100")
    return values


def check_texts(values: list[Any], count: int) -> list[str]:
    """Return the values without leading and trailing white space. Raises ValueError unless they are `count`
    texts, none of them empty."""
    if len(values) != count or not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(f"not {count} texts")
    return [value.strip() for value in values]
