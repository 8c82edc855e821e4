"""Requests replies that must have a certain form, and repeats a request if its reply does not have it.

The texts that a model works on are data, so they are sent as JSON, apart from the instructions (judging.py).
The reply must be a JSON value alone, with or without a Markdown fence. A malformed reply is refused as a
whole: nothing is guessed or cut to length. The request is then repeated, up to `ATTEMPTS` times per
invocation of the command. Repeated attempts use `RETRY_TEMPERATURE`, since at temperature 0 the model would
give the same reply again. A request that the endpoint rejects, because it is too long for the model for
example, has no reply either, and does not end the run.

Replies are stored in the run's response cache (rag_r1/runs/response_cache.py), so that an answered request is
not sent again after a kill.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rag_r1.inference.chat_completions_api import PATH, read_chat
from rag_r1.inference.client import Endpoint, EngineFailure, RequestRejectedError
from rag_r1.inference.episode_client import EpisodeClient
from rag_r1.runs.response_cache import ResponseCache

T = TypeVar("T")

#: The most attempts of a request in one invocation of the command.
ATTEMPTS = 3
#: Temperature of the attempts after the first.
RETRY_TEMPERATURE = 0.7
#: Number of consecutive requests without an answer after which the endpoint counts as gone and the run ends.
MAX_CONSECUTIVE_FAILURES = 50
#: Number of replies after which the run ends if none of them had the required form.
MAX_USELESS = 100
#: No two parts can match the same line breaks: a reply of a thousand of them would take seconds.
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL | re.IGNORECASE)

#: Returns, for the number of an attempt, the body of its request and the most tokens of its reply.
MakeRequest = Callable[[int], tuple[Mapping[str, Any], int]]


class StrictReplies:
    """Sends requests until their replies have the required form.

    `name` stands for the model in messages. `counts` has the number of malformed replies (`refused`), of
    requests that the endpoint rejected (`declined`), and of requests without an answer (`unanswered`), which
    include those that it rejected before its first answer.
    """

    def __init__(self, name: str, endpoint: Endpoint, cache: ResponseCache):
        self.name, self.endpoint, self.cache = name, endpoint, cache
        self.counts: Counter[str] = Counter()
        self._failures_in_a_row = 0
        #: Before the first answer, a rejection means that the endpoint is set up wrongly. After it, a
        #: rejection concerns one request only.
        self._has_answered = False
        #: Whether any reply had the required form.
        self._has_form = False

    async def ask(
        self, request_id: str, make_request: MakeRequest, parse: Callable[[str], T], earlier_attempts: int = 0
    ) -> T | None:
        """Return the result of `parse` for the text of a reply; None after the last attempt, or if the
        endpoint rejects the request.

        `make_request` builds the request of each attempt, and `parse` raises ValueError for a malformed
        reply. `earlier_attempts` is the number of attempts made by earlier invocations, which are not
        repeated. Raises EngineFailure if the endpoint does not answer, and RunError if the disk is full; the
        next invocation then sends the request again.
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
        """Count a malformed reply, and end the run if no reply ever had the required form."""
        self.counts["refused"] += 1
        if not self._has_form and self.counts["refused"] == MAX_USELESS:
            text = " ".join(str(error).split())[:200]
            self.endpoint.stop(
                f"none of {MAX_USELESS} replies of the {self.name} had the required form ({text}): "
                "try other keys of its requests (max_tokens, thinking switched off), or another model"
            )

    def _note_unanswered(self, error: EngineFailure) -> None:
        """Count a request without an answer, and end the run after too many in a row."""
        self.counts["unanswered"] += 1
        self._failures_in_a_row += 1
        if (count := self._failures_in_a_row) >= MAX_CONSECUTIVE_FAILURES:
            reason = f"{count} requests in a row got no answer from the {self.name}; the last: {error}"
            self.endpoint.stop(reason)


def json_of(reply: str) -> Any:
    """Return the JSON value that a reply consists of. Raises ValueError if the reply contains anything else,
    an object that has a key twice, or lists that are nested too deeply."""
    text = reply.strip()
    if match := _FENCE.fullmatch(text):
        text = match[1]
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError("its lists or objects are nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values. Raises ValueError if a key occurs twice, since one of
    its values would be ignored."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a key twice")
    return value
