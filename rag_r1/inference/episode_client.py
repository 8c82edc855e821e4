"""The requests of one episode to an endpoint, and their responses, through the response cache.

An engine (engines/chat.py, engines/completions.py) is made for each episode. Its `EpisodeClient` looks for
the response in the cache first, then sends the request to the endpoint; a response is in the cache before the
engine sees it.
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
    """A reply of the model. `ids` and `logprobs` (nats) if the endpoint gives them; `finish`: the endpoint's
    `finish_reason`; `knows_stop`: whether the endpoint names the stop string at which it ended, in
    `stopped_at` (None if it ended otherwise)."""

    text: str
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish: str | None = None
    knows_stop: bool = False
    stopped_at: str | None = None


class EpisodeClient:
    """The requests of one episode, numbered by turn. `usage` is what the episode has used, cached or not;
    `on_text` sees its completions grow (streaming.py)."""

    def __init__(
        self, request_id: str, endpoint: Endpoint, cache: ResponseCache, on_text: OnText | None = None
    ):
        self.request_id, self.endpoint, self.cache, self.on_text = request_id, endpoint, cache, on_text
        self.usage = Usage()
        self._turn = 0

    async def ask(
        self, path: str, body: Mapping[str, Any], parse: Callable[[Any], Reply], max_tokens: int
    ) -> Reply:
        """The reply to the next turn's request, which `parse` reads from the answer's JSON or refuses with a
        ValueError. `max_tokens`: what may be generated. Raises EngineFailure, and RunError on a full
        disk."""
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
                    if not response.usage.estimated:  # the endpoint charges for a useless answer, too
                        self.cache.put(self.request_id, turn, request, None, response.usage)
                    raise
                return reply, response.usage

        reply, usage = await self.endpoint.retried(attempt)
        self.cache.put(self.request_id, turn, request, asdict(reply), usage)
        self.usage.add(usage)
        self._turn += 1
        return reply


def turn_seed(seed: int, turn: int) -> int:
    """A seed of 31 bits for each turn of an episode."""
    digest = hashlib.sha256(f"{seed}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def finish_fields(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The `finish`, `knows_stop` and `stopped_at` of a Reply. vLLM says in `stop_reason` which stop string it
    met (null at the end of sequence); OpenAI's API does not."""
    finish, stop_reason = choice.get("finish_reason"), choice.get("stop_reason")
    return {
        "finish": finish if isinstance(finish, str) else None,
        "knows_stop": "stop_reason" in choice,
        "stopped_at": well_formed(stop_reason) if isinstance(stop_reason, str) else None,
    }


def merge_body(body: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the user's own keys; null removes a key."""
    return {key: value for key, value in {**body, **keys}.items() if value is not None}
