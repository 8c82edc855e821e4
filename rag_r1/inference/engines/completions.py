"""An engine for completions endpoints, `/v1/completions`, that sends and receives token ids.

The context is sent as the token ids of the ledger, unchanged. vLLM returns the sampled ids if a request has
`return_token_ids`; other servers ignore that key. `returns_token_ids` finds out once per run which case
applies. Without ids, the returned text is encoded with the policy's tokenizer. The tokens can then differ
from those that were sampled, and the run's settings record `text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import float_info
from typing import Any

from rag_r1.agent import Codec, Generation
from rag_r1.inference.client import Endpoint
from rag_r1.inference.engines.stop_strings import close_at_stop
from rag_r1.inference.episode_client import EpisodeClient, Reply, finish_fields, turn_seed, with_own_keys
from rag_r1.inference.response_metadata import first_choice
from rag_r1.protocols import Protocol
from rag_r1.protocols.actions import well_formed

#: The path below the address of an endpoint.
PATH = "/completions"
#: Most seconds to wait for the first token of a run: the server may be busy with another run.
_FIRST_TOKEN_S = 60.0


class CompletionEngine:
    """The engine of one episode, which sends its context as token ids.

    - `client`, `codec`, `protocol`, `seed`: as in ChatEngine (chat.py)
    - `sampling`: keys of every request (model, temperature, ...)
    - `returns_ids`: whether the endpoint returns token ids (see `returns_token_ids`)
    - `logprobs`: whether the log-probs of the sampled tokens are requested, too (only with ids). A server
      that returns none is no failure: the generation has None then
    - `extra_body`: the user's own keys of every request; a null removes a key
    """

    def __init__(
        self,
        client: EpisodeClient,
        codec: Codec,
        protocol: Protocol,
        sampling: Mapping[str, Any],
        seed: int,
        *,
        returns_ids: bool = True,
        logprobs: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ):
        self.client, self.usage = client, client.usage
        self.codec, self.protocol = codec, protocol
        self.sampling, self.extra_body = dict(sampling), dict(extra_body or {})
        self.seed = seed
        self.returns_ids, self.logprobs = returns_ids, logprobs and returns_ids
        self._turn = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Return the policy's next turn, including the stop string at which it ended. Raises EngineFailure,
        and RunError if the disk is full."""
        body = {
            **self.sampling,
            "prompt": list(context),
            "max_tokens": max_tokens,
            "stop": list(stop) or None,
            "include_stop_str_in_output": True,
            "return_token_ids": True,
            "logprobs": 0 if self.logprobs else None,  # of the sampled tokens only
            "seed": turn_seed(self.seed, self._turn),
        }
        read = read_ids if self.returns_ids else read_text
        body, most_tokens = with_own_keys(body, self.extra_body, max_tokens)
        reply = await self.client.ask(PATH, body, read, most_tokens)
        self._turn += 1
        if self.returns_ids:
            assert reply.ids is not None  # read_ids has them
            return Generation(reply.ids, reply.logprobs if self.logprobs else None)
        return Generation(self.codec.encode(close_at_stop(reply, self.protocol, stop)))

    def restore_turn(self, context: list[int], ids: list[int]) -> None:
        """Count a turn that the policy wrote before the run was interrupted, so that the next turns get the
        same seeds as in an uninterrupted run."""
        self._turn += 1


def read_text(data: Any) -> Reply:
    """Return the reply in an answer without token ids. Raises ValueError if its text is missing or empty."""
    choice = first_choice(data)
    if not isinstance(choice.get("text"), str) or not choice["text"].strip():
        raise ValueError("its choice has no text")
    return Reply(well_formed(choice["text"]), **finish_fields(choice))


def read_ids(data: Any) -> Reply:
    """Return the reply in an answer with token ids, and with their log-probs if there are any. Raises
    ValueError if the ids are missing, or the log-probs do not match them."""
    choice = first_choice(data)
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError("its choice has no token_ids")
    text = choice.get("text")
    return Reply(
        well_formed(text) if isinstance(text, str) else "",
        ids=ids,
        logprobs=_logprobs(choice.get("logprobs"), len(ids)),
        **finish_fields(choice),
    )


def _logprobs(logprobs: Any, count: int) -> list[float] | None:
    """Return the log-probs of `count` sampled tokens; None if the choice has none. Raises ValueError unless
    there is one finite number for each token."""
    if logprobs is None:
        return None
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list) or len(values) != count:
        raise ValueError("it does not have one log-prob for each token")
    # Compared, since `math.isfinite` raises OverflowError for a whole number that is too large for a float.
    if not all(type(value) in (float, int) and abs(value) <= float_info.max for value in values):
        raise ValueError("its log-probs are not all finite numbers")
    return [float(value) for value in values]


async def returns_token_ids(
    endpoint: Endpoint, model: str, prompt: Sequence[int], extra_body: Mapping[str, Any]
) -> bool:
    """Return whether the endpoint returns token ids.

    Requests a single token, at most twice, so that a server that does not work is noticed early. Raises
    EngineFailure if the endpoint cannot continue a prompt of token ids at all.
    """
    body = {"model": model, "prompt": list(prompt), "temperature": 0.0, "return_token_ids": True}
    body, _ = with_own_keys(body, extra_body, max_tokens=1)
    body["max_tokens"] = 1  # whatever the user's keys say

    async def attempt() -> bool:
        async with endpoint.post(PATH, body, max_tokens=1) as response:
            if not first_choice(response.data).get("token_ids"):
                return False
            return read_ids(response.data).ids is not None

    return await endpoint.retried(attempt, probe_s=_FIRST_TOKEN_S)
