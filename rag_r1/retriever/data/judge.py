"""A judge that replies with a JSON list, which is validated and requested again if it is wrong.

The judge is any OpenAI-compatible chat endpoint (evaluation/judge.py has its arguments). The texts that it
judges are data: they are sent as JSON, apart from the instructions. Its reply must be the list alone, with or
without a Markdown fence. A list of another length, or with one wrong entry, is refused as a whole, and the
judge is asked again, up to `ATTEMPTS` times in each start of the command: first at temperature 0, then, since
it would reply the same again, at `RETRY_TEMPERATURE` with another seed. So nothing is guessed, nothing is cut
to length, and one malformed score costs a request rather than the round. A request that the endpoint itself
refuses, since it is too long for the judge for example, has no list either, and does not end the run. Both
are tried again by the next start.

Every reply is in the step's response cache (rag_r1/runs/response_cache.py), so a start that was killed asks
nothing twice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

from rag_r1.evaluation.judge import JudgeArguments, judge_request
from rag_r1.inference.chat import PATH, read_chat
from rag_r1.inference.client import Endpoint, EngineFailure, RequestRejectedError
from rag_r1.inference.episode_client import EpisodeClient
from rag_r1.runs.response_cache import ResponseCache

Read = TypeVar("Read")

ATTEMPTS = 3
#: Temperature of the attempts after the first.
RETRY_TEMPERATURE = 0.7
#: Requests without an answer in a row after which the run ends: the endpoint is gone.
MAX_CONSECUTIVE_FAILURES = 50
#: Tokens of a reply, unless --judge-body says otherwise.
MAX_REPLY_TOKENS = 1000
_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


def instructions(name: str) -> str:
    """The text of `prompts/NAME.txt`."""
    return (files("rag_r1.retriever.data") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


class RelevanceJudge:
    """See the top of the module. `counts`: replies that were `refused`, requests that the endpoint has
    `declined`, and those that stayed `unanswered`."""

    def __init__(self, args: JudgeArguments, endpoint: Endpoint, tape: ResponseCache):
        self.args, self.endpoint, self.tape = args, endpoint, tape
        self.counts: Counter[str] = Counter()
        self._failures_in_a_row = 0
        #: One that refuses everything is set up wrongly, and the run ends; after an answer it is the request.
        self._has_answered = False

    async def ask(
        self, name: str, prompt: str, case: Mapping[str, Any], read: Callable[[list[Any]], Read], earlier: int
    ) -> Read | None:
        """The result of `read` for the judge's list, which it refuses by raising ValueError; None after the
        last attempt, or if the endpoint refuses the request. `prompt`: the instructions. `earlier`: attempts
        of earlier starts, which are not repeated.

        Raises EngineFailure if the endpoint does not answer: the next start asks again.
        """
        exchanges = EpisodeClient(f"{name}/{earlier}", self.endpoint, self.tape)
        for attempt in range(earlier, earlier + ATTEMPTS):
            sampling = {"temperature": RETRY_TEMPERATURE if attempt else 0.0, "seed": attempt}
            body, max_tokens = judge_request(self.args, prompt, case, MAX_REPLY_TOKENS, **sampling)
            try:
                reply = await exchanges.ask(PATH, body, read_chat, max_tokens)
            except EngineFailure as error:
                is_rejected = isinstance(error, RequestRejectedError)
                if is_rejected and self._has_answered:
                    self.counts["declined"] += 1
                    return None
                self._note_unanswered(error)
                if is_rejected:
                    return None
                raise
            self._failures_in_a_row, self._has_answered = 0, True
            try:
                return read(read_list(reply.text))
            except ValueError:
                self.counts["refused"] += 1
        return None

    def _note_unanswered(self, error: EngineFailure) -> None:
        self.counts["unanswered"] += 1
        self._failures_in_a_row += 1
        if (count := self._failures_in_a_row) >= MAX_CONSECUTIVE_FAILURES:
            self.endpoint.stop(f"{count} requests in a row got no answer of the judge; the last: {error}")


def read_list(reply: str) -> list[Any]:
    """The JSON list that a reply is. Raises ValueError if it is anything else, or has more beside it."""
    text = reply.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("a list of lists of lists") from error
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
