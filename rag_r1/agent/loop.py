"""The turn loop: one question, from prompt to answer, as one coroutine.

    generate -> parse -> search -> observe -> generate -> ... -> answer

Nothing here knows veRL, torch or HTTP: the engine, the searcher and the tokenizer come in through the three
small protocols below. Each trajectory is its own coroutine and waits for nobody else; all queries of a turn
go to the searcher at once. Everything that the policy sees goes through the ledger, so the training row is
the context.

An episode always ends with a status (see trajectory.STATUSES). A failed search is shown to the policy as a
short error and the episode goes on; it is counted in the turn's status.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from rag_r1.agent.budget import Budget
from rag_r1.agent.ledger import Ledger
from rag_r1.agent.packing import fit_observation
from rag_r1.agent.trajectory import Trajectory, Turn, query_key
from rag_r1.protocols import Action, Answer, Document, Failure, Invalid, Protocol, Search


@dataclass(frozen=True)
class Generation:
    """What the engine returned for one turn. `aborted`: it stopped for a reason of its own."""

    token_ids: list[int]
    logprobs: list[float] | None = None
    aborted: bool = False


class Engine(Interface):
    """Continues a context. The returned ids hold the stop string, and at most `max_tokens` tokens."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation: ...


class Searcher(Interface):
    """Answers all queries of a turn, aligned with them. A failed search is a Failure, never an exception."""

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]: ...


class Codec(Interface):
    """A tokenizer: text to ids without special tokens added, and ids to text with special tokens left out."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Episode:
    """Runs one question. After `run`, `ledger` holds the tokens and the returned trajectory the record."""

    def __init__(self, protocol: Protocol, budget: Budget, engine: Engine, searcher: Searcher, codec: Codec):
        self.protocol, self.budget = protocol, budget
        self.engine, self.searcher, self.codec = engine, searcher, codec
        self.ledger = Ledger([])
        self._asked: set[str] = set()

    async def run(self, trajectory_id: str, question: str, prompt_ids: Sequence[int]) -> Trajectory:
        """Play the episode from a prompt that is already in tokens."""
        started = time.perf_counter()
        self.ledger = Ledger(list(prompt_ids))
        self._asked = set()
        record = Trajectory(
            trajectory_id, question, self.protocol.name, prompt_tokens=len(self.ledger.prompt_ids)
        )
        record.status = await self._play(record)
        if record.status in ("turn_limit", "token_limit") and record.n_tool_failures:
            record.status = "tool_failure"
        record.generated_tokens = sum(self.ledger.mask)
        record.observed_tokens = len(self.ledger.mask) - record.generated_tokens
        record.seconds = time.perf_counter() - started
        return record

    async def _play(self, record: Trajectory) -> str:
        for left in range(self.budget.max_turns - (not self.budget.final_turn), -1, -1):
            room = min(self.budget.max_turn_tokens, self._room())
            if room < 1:
                return "token_limit"
            turn, action, aborted = await self._generate(room)
            record.turns.append(turn)
            if aborted:
                return "engine_failure"
            if isinstance(action, Answer):
                record.answer = action.text
                return "answered"
            if left == 0:
                return "turn_limit"
            if not await self._observe(turn, action):
                return "token_limit"
        return "turn_limit"

    def _room(self) -> int:
        return self.budget.max_response_tokens - len(self.ledger.response_ids)

    async def _generate(self, room: int) -> tuple[Turn, Action, bool]:
        started = time.perf_counter()
        out = await self.engine.generate(self.ledger.context(), room, self.protocol.stop)
        self.ledger.generated(out.token_ids, out.logprobs)
        text = self.codec.decode(out.token_ids)
        action = self.protocol.parse(text)
        turn = Turn(
            text, action.kind, generated_tokens=len(out.token_ids), generate_s=time.perf_counter() - started
        )
        if isinstance(action, Invalid):
            turn.status = "truncated" if len(out.token_ids) >= room else "invalid"
        return turn, action, out.aborted

    async def _observe(self, turn: Turn, action: Search | Invalid) -> bool:
        """Let the environment answer; False when there is no room for that and for a turn after it."""
        total = self._room() - self.budget.min_turn_tokens
        if isinstance(action, Invalid):
            ids = self.codec.encode(self.protocol.invalid_hint)
            if len(ids) > total:
                return False
        else:
            total = min(total, self.budget.max_observation_tokens or total)
            if total < 1:
                return False
            turn.queries = list(action.queries)
            turn.repeated_queries = self._repeated(action.queries)
            started = time.perf_counter()
            results = await self.searcher.search(action.queries)
            turn.tool_s = time.perf_counter() - started
            if any(isinstance(result, Failure) for result in results):
                turn.status = "tool_failure"
            per_query = self.budget.max_query_observation_tokens
            fitted = fit_observation(
                self.protocol, action.queries, results, self.codec.encode, per_query, total
            )
            if fitted is None:
                return False
            ids, turn.documents = fitted
        self.ledger.observed(ids)
        turn.observed_tokens = len(ids)
        return True

    def _repeated(self, queries: Sequence[str]) -> int:
        """How many of a turn's queries have been asked before; remembers them for the turns to come."""
        before = len(self._asked)
        self._asked.update(map(query_key, queries))
        return len(queries) - (len(self._asked) - before)
