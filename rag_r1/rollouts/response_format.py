"""Finds out in which form an endpoint returns completions: as chat messages, token ids or text.

The form decides which engine plays the episodes (engine_factory.py). It is found out with a test request when
a run starts, and recorded in the run's settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.client import Endpoint, EngineFailure
from rag_r1.inference.engines.completions import returns_token_ids
from rag_r1.rollouts.server_check import check_endpoint
from rag_r1.runs.errors import RunError

#: The forms of an endpoint's answers. The run's settings record the form as `answers`.
CHAT, IDS, TEXT = "chat", "token ids", "text"


async def response_format(
    engine: str, endpoint: Endpoint, model: str, extra_body: Mapping[str, Any], setup: AgentSetup
) -> str:
    """Return CHAT, IDS or TEXT, the form of the endpoint's answers to the requests of an engine. Raises
    RunError if the endpoint does not have the engine's API, or if no model server answers."""
    if engine == "chat" and setup.protocol.turns == "chat":
        raise RunError(
            f"--engine chat cannot play the protocol {setup.protocol.name}: its turns and tools are "
            "put into the model's chat template here; use --engine completions"
        )
    if not endpoint.options.trust_env:  # behind a proxy, this machine may not reach the server itself
        key_variable = endpoint.options.key_variable
        await asyncio.to_thread(
            check_endpoint, endpoint.base, key_variable, "model server", "--base-url", model
        )
    if engine == "chat":
        return CHAT
    try:
        has_ids = await returns_token_ids(endpoint, model, setup.prompt_ids("Who?"), extra_body)
    except EngineFailure as error:
        raise RunError(
            f"{endpoint.base} does not continue token ids ({error}): correct the address, or use "
            "--engine chat"
        ) from error
    return IDS if has_ids else TEXT


def requires_token_ids(setup: AgentSetup, answers: str) -> bool:
    """Return whether the agent needs the log-probs of tokens, which only an endpoint with token ids returns.
    Raises RunError if it needs them and the endpoint's answers have another form."""
    if setup.budget.max_state is None:
        return False
    if answers != IDS:
        raise RunError(
            "rag_r1.agent.max_state needs the log-probs of tokens: use --engine completions and a server "
            "that returns token ids (vLLM), or leave max_state out"
        )
    return True
