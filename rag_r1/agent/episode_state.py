"""The state of a running episode, shared by the turn loop and the actions.

The turn loop (episode.py) and the coroutines of the actions (actions.py) work on one `EpisodeState`.
Everything that the policy sees goes through its ledger, so the training row is exactly the context; its
memory knows to which turn each part of the context belongs. Retries, failures and events are recorded here,
so the trajectory and an observer always report the same.
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
    """The parts of a running episode, and what changes from turn to turn."""

    protocol: Protocol
    budget: Budget
    tools: Mapping[str, Tool]
    codec: Codec
    failures: FailurePolicy
    observer: Observer | None
    record: Trajectory
    ledger: Ledger
    memory: Memory
    #: Keys (`trajectory.query_key`) of all queries so far.
    sent_queries: set[str] = field(default_factory=set)
    #: Number of turns that may follow the current one.
    turns_left: int = 0

    @cached_property
    def executor(self) -> ToolExecutor:
        """Makes the calls of all turns, and counts them against the limits of the tools."""
        context = partial(call_context, self.record, self.protocol.thought)
        return ToolExecutor(self.tools, self.failures, self.wait, context)

    @cached_property
    def end_ids(self) -> list[int] | None:
        """The id of the token with which the policy ends a chat turn, as a list; None if turns are text."""
        end = self.protocol.end_token
        return self.codec.encode(end) if end else None

    @property
    def room(self) -> int:
        """Number of tokens that the open row and the episode can still take."""
        room = self.ledger.room
        assert room is not None  # a Budget always limits the response of a row
        if self.budget.max_episode_tokens is None:
            return room
        used = self.ledger.generated_tokens + self.ledger.observed_tokens
        return min(room, self.budget.max_episode_tokens - used)

    @property
    def spare_room(self) -> int:
        """Number of tokens that may still be added so that another turn fits; below 0 if none would."""
        return self.room - self.budget.min_turn_tokens

    def observe(self, turn: Turn, ids: list[int], text: str) -> None:
        """Add an observation to the context: `ids` are the token ids of `text`. A chat observation begins
        with the token that ends the policy's turn; it is left out if the policy has written it already."""
        if self.end_ids is not None and self.end_ids == ids[:1] == self.ledger.context()[-1:]:
            ids, text = ids[1:], text.removeprefix(self.protocol.end_token or "")
        turn.observe(text)
        self.memory.add_observed(self.ledger.append_observed(ids, len(self.record.turns) - 1))
        turn.observed_tokens = len(ids)

    async def wait(self, attempt: int) -> None:
        """Count a retry, and wait before it; `attempt` is the number of the failed attempt, from 0."""
        self.record.retries += 1
        await asyncio.sleep(self.failures.delay(attempt))

    def add_failure(self, kind: str, detail: str) -> None:
        """Record a failure that persisted after all retries, and emit it; `kind` is one of failures.KINDS."""
        self.record.add_failure(kind, detail)
        self.emit("failure", kind=kind, detail=detail)

    def emit(self, kind: EventKind, /, **data: Any) -> None:
        """Pass an event of the current turn (see events.py) to the observer, if there is one."""
        if self.observer:
            self.observer(Event(self.record.id, kind, max(len(self.record.turns) - 1, 0), data))
