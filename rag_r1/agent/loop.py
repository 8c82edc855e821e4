"""The turn loop: one question, from prompt to answer, as one coroutine.

    generate -> parse -> search -> observe -> generate -> ... -> answer

Nothing here knows veRL, torch or HTTP: the engine, the searcher and the tokenizer come in through the three
small protocols below. Each trajectory is its own coroutine and waits for nobody else; all queries of a turn
go to the searcher at once. Everything that the policy sees goes through the ledger, so the training row is
the context.

An episode always ends with a status (see trajectory.STATUSES). Every failure of the engine or of the searcher
is typed here, tried again and recorded as failures.py tells; unless it is to be masked, a failed search is
shown to the policy as a short error and the episode goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

from rag_r1.agent.budget import Budget
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.ledger import Ledger
from rag_r1.agent.packing import fit_observation
from rag_r1.agent.trajectory import Trajectory, Turn, query_key
from rag_r1.protocols import Action, Answer, Document, Failure, Invalid, Protocol, Search

logger = logging.getLogger(__name__)

_TIMED_OUT = "The search did not answer in time. Try another query, or answer with what is known."


@dataclass(frozen=True)
class Generation:
    """What the engine returned for one turn. `aborted`: it stopped for a reason of its own, told in
    `detail`."""

    token_ids: list[int]
    logprobs: list[float] | None = None
    aborted: bool = False
    detail: str = ""


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

    def __init__(
        self,
        protocol: Protocol,
        budget: Budget,
        engine: Engine,
        searcher: Searcher,
        codec: Codec,
        failures: FailurePolicy | None = None,
    ):
        self.protocol, self.budget = protocol, budget
        self.engine, self.searcher, self.codec = engine, searcher, codec
        self.failures = failures or FailurePolicy()
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
        if record.status in ("turn_limit", "token_limit", "no_action") and record.n_tool_failures:
            record.status = "tool_failure"
        elif record.status in ("turn_limit", "token_limit"):
            record.failed("budget", record.status)
        record.generated_tokens = sum(self.ledger.mask)
        record.observed_tokens = len(self.ledger.mask) - record.generated_tokens
        record.seconds = time.perf_counter() - started
        return record

    async def _play(self, record: Trajectory) -> str:
        for left in range(self.budget.max_turns - (not self.budget.final_turn), -1, -1):
            room = min(self.budget.max_turn_tokens, self._room())
            if room < 1:
                return "token_limit"
            turn, action, out = await self._generate(record, room)
            record.turns.append(turn)
            if out.aborted:
                record.failed("engine", out.detail)
                return "engine_failure"
            if isinstance(action, Answer):
                record.answer = action.text
                return "answered"
            if left == 0:
                return "turn_limit"
            if isinstance(action, Invalid) and self.protocol.invalid_hint is None:
                return "token_limit" if turn.status == "truncated" else "no_action"
            if not await self._observe(record, turn, action):
                return "token_limit"
        return "turn_limit"

    def _room(self) -> int:
        return self.budget.max_response_tokens - len(self.ledger.response_ids)

    async def _generate(self, record: Trajectory, room: int) -> tuple[Turn, Action, Generation]:
        started = time.perf_counter()
        out = await self._continue(room)
        for attempt in range(self.failures.retries):
            if not out.aborted:
                break
            await self._wait(record, attempt)
            out = await self._continue(room)
        self.ledger.generated(out.token_ids, out.logprobs)
        text = self.codec.decode(out.token_ids)
        action = self.protocol.parse(text)
        turn = Turn(
            text, action.kind, generated_tokens=len(out.token_ids), generate_s=time.perf_counter() - started
        )
        if isinstance(action, Invalid):
            turn.status = "truncated" if len(out.token_ids) >= room else "invalid"
        return turn, action, out

    async def _continue(self, room: int) -> Generation:
        try:
            return await self.engine.generate(self.ledger.context(), room, self.protocol.stop)
        except Exception as error:  # foreign code: this is the boundary at which its failures are typed
            logger.warning("the engine failed: %r", error)
            return Generation([], aborted=True, detail=f"{type(error).__name__}: {error}")

    async def _search(self, record: Trajectory, queries: Sequence[str]) -> list[Sequence[Document] | Failure]:
        """One result a query; what failed, and only that, is asked again."""
        results = await self._ask(queries)
        for attempt in range(self.failures.retries):
            failed = [i for i, result in enumerate(results) if isinstance(result, Failure)]
            if not failed:
                break
            await self._wait(record, attempt)
            again = await self._ask([queries[i] for i in failed])
            for i, result in zip(failed, again, strict=True):
                results[i] = result
        return results

    async def _ask(self, queries: Sequence[str]) -> list[Sequence[Document] | Failure]:
        limit = self.failures.tool_timeout_s
        try:
            return list(await asyncio.wait_for(self.searcher.search(queries), limit))
        except asyncio.TimeoutError:
            return [Failure(_TIMED_OUT, "tool", f"no answer within {limit:g} s")] * len(queries)

    async def _wait(self, record: Trajectory, attempt: int) -> None:
        record.retries += 1
        await asyncio.sleep(self.failures.wait_s * 2**attempt)

    async def _observe(self, record: Trajectory, turn: Turn, action: Search | Invalid) -> bool:
        """Let the environment answer; False when there is no room for that and for a turn after it, or when
        the search failed and that is to be masked."""
        total = self._room() - self.budget.min_turn_tokens
        if isinstance(action, Invalid):
            ids = self.codec.encode(self.protocol.invalid_hint or "")
            if len(ids) > total:
                return False
        else:
            total = min(total, self.budget.max_observation_tokens or total)
            if total < 1:
                return False
            turn.queries = list(action.queries)
            turn.repeated_queries = self._repeated(action.queries)
            started = time.perf_counter()
            results = await self._search(record, action.queries)
            turn.tool_s = time.perf_counter() - started
            failed = [result for result in results if isinstance(result, Failure)]
            if failed:
                turn.status = "tool_failure"
                first = min(failed, key=lambda failure: failure.kind not in self.failures.mask)
                record.failed(first.kind, first.detail)
                if record.masked(self.failures.mask):
                    return False
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
