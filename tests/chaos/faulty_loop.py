"""The search agent behind an engine that aborts or loses some requests, and is gone for some episodes.

Chosen through veRL's own key `actor_rollout_ref.rollout.agent.agent_loop_config_path`, so that a training
runs with nothing in it replaced.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

from rag_r1.plugin.agent_loop import SearchAgentLoop

#: Shares of the generations. Each is tried once more, so most of these episodes go on.
ABORTED, RAISED = 0.15, 0.05
#: For one episode in so many the engine is gone: four of a batch of 32, in every life of a training, however
#: few turns there are. (Chance alone left a training without any: its first searches all failed, so each
#: episode had one turn, and the random numbers start anew in each life.)
WITHOUT_ENGINE = 8
_random = random.Random(0)
_episodes = count(1)  # of this process


class FaultyClient:
    """veRL's client, whose answers are cut in the middle and called aborted, or lost with the connection."""

    def __init__(self, client: Any):
        self._client, self._gone = client, next(_episodes) % WITHOUT_ENGINE == 0

    async def generate(self, **kwargs: Any) -> Any:
        out = await self._client.generate(**kwargs)
        chance = _random.random()
        if self._gone or chance < RAISED:
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
