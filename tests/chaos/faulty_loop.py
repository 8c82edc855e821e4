"""The search agent behind an engine that aborts some of its requests and raises at others.

Chosen through veRL's own key `actor_rollout_ref.rollout.agent.agent_loop_config_path`, so that a training
runs with nothing in it replaced.
"""

from __future__ import annotations

import random
from typing import Any

from rag_r1.plugin.agent_loop import SearchAgentLoop

#: Shares of the generations. Each is tried once more, so that a few in a hundred fail for good.
ABORTED, RAISED = 0.15, 0.05
_random = random.Random(0)


class FaultyClient:
    """veRL's client, whose answers are cut in the middle and called aborted, or lost with the connection."""

    def __init__(self, client: Any):
        self._client = client

    async def generate(self, **kwargs: Any) -> Any:
        out = await self._client.generate(**kwargs)
        chance = _random.random()
        if chance < RAISED:
            raise ConnectionError("the engine is gone")
        if chance < RAISED + ABORTED:
            half = len(out.token_ids) // 2
            out.token_ids, out.stop_reason = out.token_ids[:half], "aborted"
            out.log_probs = out.log_probs and out.log_probs[:half]
        return out


class FaultySearchAgentLoop(SearchAgentLoop):
    """SearchAgentLoop with a FaultyClient."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.server_manager = FaultyClient(self.server_manager)
