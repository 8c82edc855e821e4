"""The state of a running episode: its parts, what the policy sees, and the record that is filled.

The loop of turns (episode.py) and what the actions do (actions.py) work on the same state. Everything that
the policy sees goes through the ledger, so the training row is the context; the memory knows which turn each
part of it belongs to. Retries, failures and events are recorded here, so that the trajectory and an observer
learn the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.budget import Budget
from rag_r1.agent.events import Event, SafeObserver
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.interfaces import Codec, Tool
from rag_r1.agent.memory import Memory
from rag_r1.agent.tokens.ledger import Ledger
from rag_r1.agent.trajectory import Trajectory, Turn
from rag_r1.protocols import Protocol


@dataclass
class EpisodeState:
    """What the turns of an episode share. `called`: calls of each tool that it accepted; `sent_queries`: the
    keys (trajectory.query_key) of the queries so far; `turns_left`: turns that may follow this one."""

    protocol: Protocol
    budget: Budget
    tools: Mapping[str, Tool]
    codec: Codec
    failures: FailurePolicy
    observer: SafeObserver | None
    record: Trajectory
    ledger: Ledger
    memory: Memory
    called: Counter[str]
    sent_queries: set[str] = field(default_factory=set)
    turns_left: int = 0

    @property
    def room(self) -> int:
        """Tokens that the open row and the episode can still take."""
        room = self.ledger.room
        assert room is not None  # a Budget always limits a row's response
        if self.budget.max_episode_tokens is None:
            return room
        used = self.ledger.generated_tokens + self.ledger.observed_tokens
        return min(room, self.budget.max_episode_tokens - used)

    def observe(self, turn: Turn, ids: list[int]) -> None:
        """Put what the environment adds into the context. It begins with the end of the policy's turn, which
        is left out if the policy has written that itself."""
        end = self.protocol.end_token
        if end and self.codec.encode(end) == ids[:1] == self.ledger.context()[-1:]:
            ids = ids[1:]
        self.memory.observed(self.ledger.observed(ids, len(self.record.turns) - 1))
        turn.observed_tokens = len(ids)

    async def wait(self, attempt: int) -> None:
        """Count a retry and wait before it; `attempt` counts from 0."""
        self.record.retries += 1
        await asyncio.sleep(self.failures.delay(attempt))

    def failed(self, kind: str, detail: str) -> None:
        """Record a failure that persisted, of a kind of failures.py."""
        self.record.failed(kind, detail)
        self.tell("failure", kind=kind, detail=detail)

    def tell(self, what: str, /, **data: Any) -> None:
        """Tell the observer, if there is one, what happened in this turn (see events.py)."""
        if self.observer:
            self.observer(Event(self.record.id, what, max(len(self.record.turns) - 1, 0), data))
