"""Requests whose reply must have a certain form, which is validated and requested again if it is wrong.

The texts that a model works on are data: they are sent as JSON, apart from the instructions (judging.py). Its
reply must be the JSON value alone, with or without a Markdown fence. A wrong one is refused as a whole, and
the model is asked again, up to `ATTEMPTS` times in each start of a command; `RETRY_TEMPERATURE` is that of
the attempts after the first, since at temperature 0 it would reply the same again. So nothing is guessed and
nothing is cut to length. A request that the endpoint itself refuses, since it is too long for the model for
example, has no reply either, and does not end the run.

Every reply is in the run's response cache (rag_r1/runs/response_cache.py), so a request
whose reply has arrived is not sent again after a kill.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rag_r1.inference.chat_completions_api import PATH, read_chat
from rag_r1.inference.client import Endpoint, EngineFailure, RequestRejectedError
from rag_r1.inference.episode_client import EpisodeClient, merge_body
from rag_r1.runs.response_cache import ResponseCache

T = TypeVar("T")

ATTEMPTS = 3
#: Temperature of the attempts after the first.
RETRY_TEMPERATURE = 0.7
#: Consecutive requests without an answer after which the run ends: the endpoint is gone.
MAX_CONSECUTIVE_FAILURES = 50
#: Replies after which the run ends if none of them had the form: this model does not write it.
MAX_USELESS = 100
_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)

#: By the number of the attempt: the body of its request, and how many tokens its reply may have.
MakeRequest = Callable[[int], tuple[Mapping[str, Any], int]]


class StrictReplies:
    """Sends requests until their replies have the required form. `name`: the model in messages. `counts`:
    replies that were `refused`, requests that the endpoint has `declined`, and those that stayed
    `unanswered`."""

    def __init__(self, name: str, endpoint: Endpoint, cache: ResponseCache):
        self.name, self.endpoint, self.cache = name, endpoint, cache
        self.counts: Counter[str] = Counter()
        self._failures_in_a_row = 0
        #: An endpoint that refuses everything is set up wrongly, and the run ends; after an answer, a refusal
        #: is about its request.
        self._has_answered = False
        #: Whether any reply had the required form.
        self._has_form = False

    async def ask(
        self, request_id: str, make_request: MakeRequest, parse: Callable[[str], T], earlier_attempts: int = 0
    ) -> T | None:
        """The result of `parse` for the text of the reply, which it refuses by raising ValueError; None after
        the last attempt, or if the endpoint refuses the request. `make_request`: the request of an attempt;
        `earlier_attempts`: those of earlier starts, which are not repeated.

        Raises EngineFailure if the endpoint does not answer: the next start sends the request again.
        """
        client = EpisodeClient(request_id, self.endpoint, self.cache)
        for attempt in range(earlier_attempts, earlier_attempts + ATTEMPTS):
            body, max_tokens = make_request(attempt)
            try:
                reply = await client.ask(PATH, body, read_chat, max_tokens)
            except EngineFailure as error:
                is_rejected = isinstance(error, RequestRejectedError)
                if is_rejected and self._has_answered:
                    self.counts["declined"] += 1
                    return None
                self._note_unanswered(error)
                if is_rejected:
                    return None
                raise
            self._failures_in_a_row = 0
            self._has_answered = True
            try:
                value = parse(reply.text)
            except ValueError as error:
                self._note_refused(error)
                continue
            self._has_form = True
            return value
        return None

    def _note_refused(self, error: ValueError) -> None:
        """Count a reply of a wrong form; ends the run if no reply ever had the right one."""
        self.counts["refused"] += 1
        if not self._has_form and self.counts["refused"] == MAX_USELESS:
            text = " ".join(str(error).split())[:200]
            self.endpoint.stop(
                f"none of {MAX_USELESS} replies of the {self.name} had the required form ({text}): "
                "try other keys of its requests (max_tokens, thinking switched off), or another model"
            )

    def _note_unanswered(self, error: EngineFailure) -> None:
        """Count a request without an answer; ends the run after too many in a row."""
        self.counts["unanswered"] += 1
        self._failures_in_a_row += 1
        if (count := self._failures_in_a_row) >= MAX_CONSECUTIVE_FAILURES:
            reason = f"{count} requests in a row got no answer from the {self.name}; the last: {error}"
            self.endpoint.stop(reason)


def with_own_keys(
    body: Mapping[str, Any], keys: Mapping[str, Any], max_tokens: int
) -> tuple[dict[str, Any], int]:
    """A request with the user's own keys, of which null removes one; and how many tokens its reply may have,
    which is `max_tokens` unless these keys say otherwise."""
    merged = merge_body(body, keys)
    limits = (merged.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return merged, next((limit for limit in limits if isinstance(limit, int)), max_tokens)


def json_of(reply: str) -> Any:
    """The JSON value that a reply consists of. Raises ValueError if there is anything beside it, or if an
    object has a key twice, of which one would be ignored."""
    text = reply.strip()
    if match := _FENCE.fullmatch(text):
        text = match[1]
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("a list of lists of lists") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these keys and values. Raises ValueError if a key stands twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a key twice")
    return value
