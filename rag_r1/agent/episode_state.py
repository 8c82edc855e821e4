"""The state of a running episode: its parts, what the policy sees, and the record that is filled.

The loop of turns (episode.py) and what the actions do (actions.py) work on the same state. Everything that
the policy sees goes through the ledger, so the training row is the context; the memory knows which turn each
part of it belongs to. Retries, failures and events are recorded here, so that the trajectory and an observer
learn the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from rag_r1.agent.budget import Budget
from rag_r1.agent.events import Event, EventKind, Observer
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.interfaces import Codec, Tool
from rag_r1.agent.memory import Memory
from rag_r1.agent.tokens.ledger import Ledger
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import Trajectory, Turn, call_context
from rag_r1.protocols import Protocol


@dataclass
class EpisodeState:
    """The state that the turns of an episode share. `sent_queries`: the keys (trajectory.query_key) of the
    queries so far; `turns_left`: turns that may follow this one."""

    protocol: Protocol
    budget: Budget
    tools: Mapping[str, Tool]
    codec: Codec
    failures: FailurePolicy
    observer: Observer | None
    record: Trajectory
    ledger: Ledger
    memory: Memory
    sent_queries: set[str] = field(default_factory=set)
    turns_left: int = 0

    @cached_property
    def executor(self) -> ToolExecutor:
        """The executor of the calls of all turns."""
        context = partial(call_context, self.record, self.protocol.thought)
        return ToolExecutor(self.tools, self.failures, self.wait, context)

    @cached_property
    def end_ids(self) -> list[int] | None:
        """The token with which the policy ends a chat turn itself; None if turns are text."""
        end = self.protocol.end_token
        return self.codec.encode(end) if end else None

    @property
    def room(self) -> int:
        """Tokens that the open row and the episode can still take."""
        room = self.ledger.room
        assert room is not None  # a Budget always limits the response of a row
        if self.budget.max_episode_tokens is None:
            return room
        used = self.ledger.generated_tokens + self.ledger.observed_tokens
        return min(room, self.budget.max_episode_tokens - used)

    def observe(self, turn: Turn, ids: list[int], text: str) -> None:
        """Put what the environment adds into the context: the token ids of `text`. It begins with the token
        that ends the policy's turn, which is left out if the policy has written it itself."""
        if self.end_ids is not None and self.end_ids == ids[:1] == self.ledger.context()[-1:]:
            ids, text = ids[1:], text.removeprefix(self.protocol.end_token or "")
        turn.observe(text)
        self.memory.add_observed(self.ledger.append_observed(ids, len(self.record.turns) - 1))
        turn.observed_tokens = len(ids)

    async def wait(self, attempt: int) -> None:
        """Count a retry and wait before it; `attempt` counts from 0."""
        self.record.retries += 1
        await asyncio.sleep(self.failures.delay(attempt))

    def add_failure(self, kind: str, detail: str) -> None:
        """Record a failure that persisted, of one of the kinds in failures.py."""
        self.record.add_failure(kind, detail)
        self.emit("failure", kind=kind, detail=detail)

    def emit(self, kind: EventKind, /, **data: Any) -> None:
        """Pass an event of this turn (see events.py) on to the observer, if there is one."""
        if self.observer:
            self.observer(Event(self.record.id, kind, max(len(self.record.turns) - 1, 0), data))
