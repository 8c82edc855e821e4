"""Finds out in which format an endpoint returns completions: as chat messages, token ids or text.

The format decides which engine plays the episodes (engine_factory.py). It is found out with a test request
when a run starts, and recorded in the run's settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.client import Endpoint, EngineFailure
from rag_r1.inference.engines.completions import returns_token_ids
from rag_r1.rollouts.server_check import ModelServer, check_endpoint, check_replies
from rag_r1.runs.errors import RunError

#: The formats of an endpoint's answers. The run's settings record the format as `answers`.
CHAT, IDS, TEXT = "chat", "token ids", "text"


async def response_format(
    engine: str,
    endpoint: Endpoint,
    model: str,
    extra_body: Mapping[str, Any],
    setup: AgentSetup,
    *,
    model_flag: str = "--model",
) -> str:
    """Return CHAT, IDS or TEXT, the format of the endpoint's answers to the requests of `engine` (`chat` or
    `completions`). `model_flag` is the option with the model's name. Raises RunError if the endpoint does not
    have the engine's API, if no model server answers, if the agent cannot be played with `engine`, or if the
    prompt is too long for every question."""
    if engine == "chat":
        if setup.protocol.turns == "chat":
            raise RunError(
                f"--engine chat cannot play the protocol {setup.protocol.name}: its turns and tools are "
                "put into the model's chat template here; use --engine completions"
            )
        requires_token_ids(setup, CHAT)  # raises an error if it does, before the server is asked
    if not endpoint.options.trust_env:  # behind a proxy, this machine may not reach the server itself
        server = ModelServer(endpoint.base, endpoint.options.key_variable, model, model_flag=model_flag)
        check = check_replies if engine == "chat" else check_endpoint  # the other engine is tried below
        await asyncio.to_thread(check, server)
    if engine == "chat":
        return CHAT
    try:
        prompt = setup.prompt_ids("Who?")
    except ValueError as error:
        raise RunError(
            f"not even the prompt of a short question can be made ({error}): raise --max-prompt-tokens, or "
            "shorten --prompt"
        ) from error
    try:
        has_ids = await returns_token_ids(endpoint, model, prompt, extra_body)
    except EngineFailure as error:
        raise RunError(
            f"{endpoint.base} does not continue token ids ({error}): correct the address, or use "
            "--engine chat"
        ) from error
    return IDS if has_ids else TEXT


def requires_token_ids(setup: AgentSetup, answer_format: str) -> bool:
    """Return whether the agent needs the log-probs of tokens, which only an endpoint with token ids returns.
    `answer_format` is the result of `response_format`. Raises RunError if the agent needs the log-probs and
    the format is not IDS."""
    if setup.budget.max_state is None:
        return False
    if answer_format != IDS:
        raise RunError(
            "rag_r1.agent.max_state needs the log-probs of tokens: use --engine completions and a server "
            "that returns token ids (vLLM), or leave max_state out"
        )
    return True
