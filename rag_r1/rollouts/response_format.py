"""Asks an endpoint in which form it returns what a policy wrote: chat messages, token ids or text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.inference.client import Endpoint, EngineFailure
from rag_r1.inference.engines.completions import returns_token_ids
from rag_r1.rollouts.server_check import check_endpoint
from rag_r1.runs.errors import RunError

#: The forms in which an endpoint answers; the run's settings have the form under `answers`.
CHAT, IDS, TEXT = "chat", "token ids", "text"


async def response_format(
    engine: str, endpoint: Endpoint, model: str, extra_body: Mapping[str, Any], setup: AgentSetup
) -> str:
    """Asks the endpoint what it returns to this engine; returns CHAT, IDS or TEXT. Raises RunError if it has
    no such API, or no model server answers there."""
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
    """Whether the agent needs log-probs of tokens. Raises RunError if it does and the endpoint, which returns
    `answers`, gives none."""
    if setup.budget.max_state is None:
        return False
    if answers != IDS:
        raise RunError(
            "rag_r1.agent.max_state needs the log-probs of tokens: use --engine completions and a server "
            "that returns token ids (vLLM), or leave max_state out"
        )
    return True
