"""Sends the requests of one episode to an endpoint, through the response cache.

Each episode has an engine of its own (engines/chat.py, engines/completions.py) with an `EpisodeClient`. The
client first looks for a response in the cache, and only then sends the request to the endpoint. A response is
stored in the cache before the engine receives it, so that a killed run never repeats a request that was
answered. The functions at the end prepare requests (seeds, the user's own keys) and read how a reply ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rag_r1.inference.client import Endpoint, request_bytes
from rag_r1.inference.response_limits import ResponseLimits
from rag_r1.inference.streaming import OnText
from rag_r1.protocols.actions import well_formed
from rag_r1.runs.response_cache import ResponseCache, Usage


@dataclass(frozen=True)
class Reply:
    """A reply of the model."""

    text: str
    #: The sampled token ids and their log-probs in nats; None if the endpoint does not return them.
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    #: The endpoint's `finish_reason`.
    finish: str | None = None
    #: Whether the endpoint reports the stop string at which the reply ended.
    knows_stop: bool = False
    #: That stop string; None if the reply ended in another way.
    stopped_at: str | None = None


class EpisodeClient:
    """Sends the requests of one episode, which are numbered by turn.

    `request_id` names the episode in the cache. `usage` is its token usage, cached answers included.
    `on_text` receives the completions while they are generated (streaming.py).
    """

    def __init__(
        self, request_id: str, endpoint: Endpoint, cache: ResponseCache, on_text: OnText | None = None
    ):
        self.request_id, self.endpoint, self.cache, self.on_text = request_id, endpoint, cache, on_text
        self.usage = Usage()
        self._turn = 0

    async def ask(
        self, path: str, body: Mapping[str, Any], parse: Callable[[Any], Reply], max_tokens: int
    ) -> Reply:
        """Return the reply to the next turn's request.

        `parse` reads the reply from the answer's JSON, and raises ValueError for a malformed one.
        `max_tokens` is the number of tokens that may be generated. Raises EngineFailure, and RunError if the
        disk is full.
        """
        turn, request = self._turn, request_bytes(body)
        if (entry := self.cache.get(self.request_id, turn, request)) is not None:
            self.usage.add(entry["usage"])
            self._turn += 1
            return Reply(**entry["answer"])
        limits = ResponseLimits.of(body, 0)

        async def attempt() -> tuple[Reply, Usage]:
            async with self.endpoint.post(path, body, max_tokens, self.on_text) as response:
                try:
                    reply = parse(response.data)
                    limits.check(len(reply.text), len(reply.ids or ()))
                except ValueError:
                    if not response.usage.estimated:  # the endpoint also charges for a malformed answer
                        self.cache.put(self.request_id, turn, request, None, response.usage)
                    raise
                return reply, response.usage

        reply, usage = await self.endpoint.retried(attempt)
        self.cache.put(self.request_id, turn, request, asdict(reply), usage)
        self.usage.add(usage)
        self._turn += 1
        return reply


def turn_seed(seed: int | str, turn: int) -> int:
    """Return a 31-bit seed for a turn of an episode, derived from the episode's seed."""
    digest = hashlib.sha256(f"{seed}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def finish_fields(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `finish`, `knows_stop` and `stopped_at` of a Reply. vLLM reports in `stop_reason`
    which stop string it met (null at the end of the sequence); OpenAI's API does not report it."""
    finish, stop_reason = choice.get("finish_reason"), choice.get("stop_reason")
    return {
        "finish": finish if isinstance(finish, str) else None,
        "knows_stop": "stop_reason" in choice,
        "stopped_at": well_formed(stop_reason) if isinstance(stop_reason, str) else None,
    }


def with_own_keys(
    body: Mapping[str, Any], keys: Mapping[str, Any], max_tokens: int
) -> tuple[dict[str, Any], int]:
    """Return a request's body with the user's own keys, which take precedence (a null removes a key), and the
    most tokens of its reply: the largest limit in the body, as for the check of the reply, or `max_tokens` if
    it has none."""
    merged = {key: value for key, value in {**body, **keys}.items() if value is not None}
    limit = ResponseLimits.of(merged, 0).tokens
    return merged, max_tokens if limit is None else limit
