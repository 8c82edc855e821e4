"""The turn loop: one question, from prompt to answer, as one coroutine.

    generate -> parse -> search -> observe -> generate -> ... -> answer

Nothing here knows veRL, torch or HTTP: the engine, the searcher and the tokenizer come in through the three
small interfaces of parts.py. Each trajectory is its own coroutine and waits for nobody else; all queries of a
turn go to the searcher at once. Everything that the policy sees goes through the ledger, so the training row
is the context.

An episode always ends with a status (see trajectory.STATUSES), whatever its parts do: raise, hang, or return
what does not fit (boundary.py looks). Here, and nowhere else, each failure is typed, tried again and recorded
as failures.py tells; unless it is to be masked, a failed search is shown to the policy as a short error and
the episode goes on. Only a cancellation of the episode itself comes out of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from inspect import isawaitable

from rag_r1.agent.boundary import (
    NO_ANSWER,
    TIMED_OUT,
    Late,
    checked_generation,
    checked_ids,
    checked_results,
    reason,
    within,
)
from rag_r1.agent.budget import Budget
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.ledger import Ledger
from rag_r1.agent.packing import fit_observation
from rag_r1.agent.parts import Codec, Engine, Generation, Searcher, UnknownToken
from rag_r1.agent.trajectory import Trajectory, Turn, query_key
from rag_r1.protocols import Action, Answer, Document, Failure, Invalid, Protocol, Search

logger = logging.getLogger(__name__)


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

    async def run(
        self, trajectory_id: str, question: str, prompt_ids: Sequence[int] | Awaitable[Sequence[int]]
    ) -> Trajectory:
        """Play the episode from a prompt in tokens, or from one that is still being made.

        Without a question, or with a prompt that cannot be made or does not fit, nothing is played: the
        status is `bad_row`, and the ledger stays empty. Raises nothing but its own cancellation.
        """
        self.ledger, self._asked = Ledger([]), set()
        problem = await self._begin(question, prompt_ids)
        started = time.perf_counter()
        question = question if isinstance(question, str) else ""
        tokens = len(self.ledger.prompt_ids)
        record = Trajectory(trajectory_id, question, self.protocol.name, prompt_tokens=tokens)
        if problem:
            logger.warning("trajectory %s cannot be played: %s", trajectory_id, problem)
            record.status = "bad_row"
            record.failed("row", problem)
        else:
            try:
                record.status = await self._play(record)
            except Exception as error:  # the codec's, or a fault of our own
                logger.exception("trajectory %s", trajectory_id)
                record.status = "error"
                record.failed("error", reason(error))
        if record.status in ("turn_limit", "token_limit", "no_action") and record.n_tool_failures:
            record.status = "tool_failure"
        elif record.status in ("turn_limit", "token_limit"):
            record.failed("budget", record.status)
        record.generated_tokens = sum(self.ledger.mask)
        record.observed_tokens = len(self.ledger.mask) - record.generated_tokens
        record.seconds = time.perf_counter() - started
        return record

    async def _begin(self, question: str, prompt: Sequence[int] | Awaitable[Sequence[int]]) -> str | None:
        """Take the prompt into the ledger; or the reason for which there is nothing to play."""
        try:
            ids = checked_ids(await prompt if isawaitable(prompt) else prompt)
        except Exception as error:
            return f"no prompt: {reason(error)}"
        most = self.budget.most_prompt_tokens
        if not isinstance(question, str) or not question:
            return "no question"
        if not ids or (most is not None and len(ids) > most):
            return f"{len(ids)} prompt tokens" + ("" if most is None else f" (at most {most})")
        self.ledger = Ledger(ids)
        return None

    async def _play(self, record: Trajectory) -> str:
        """Turn by turn; returns the status with which the episode ends."""
        for left in range(self.budget.max_turns - (not self.budget.final_turn), -1, -1):
            room = min(self.budget.max_turn_tokens, self._room())
            if room < 1:
                return "token_limit"
            turn = Turn("", Invalid.kind, status="invalid")  # in the record before anything of it can fail
            record.turns.append(turn)
            action, out = await self._generate(record, turn, room)
            if out.aborted:
                record.failed("engine", out.detail)
                return "engine_failure"
            if isinstance(action, Answer):
                record.answer = action.text
                return "answered"
            if left == 0:
                return "turn_limit"
            if isinstance(action, Search):
                ended = await self._look_up(record, turn, action.queries)
            elif self.protocol.invalid_hint is None:
                ended = "token_limit" if turn.status == "truncated" else "no_action"
            else:
                ended = self._hint(turn)
            if ended:
                return ended
        return "turn_limit"

    def _room(self) -> int:
        """Tokens that may still come."""
        return self.budget.response_tokens(len(self.ledger.prompt_ids)) - len(self.ledger.response_ids)

    async def _generate(self, record: Trajectory, turn: Turn, room: int) -> tuple[Action, Generation]:
        started = time.perf_counter()
        out, text = await self._continue(room)
        for attempt in range(self.failures.retries):
            if not out.aborted:
                break
            await self._wait(record, attempt)
            out, text = await self._continue(room)
        action = self.protocol.parse(text)
        self.ledger.generated(out.token_ids, out.logprobs)
        turn.text, turn.action, turn.generated_tokens = text, action.kind, len(out.token_ids)
        turn.generate_s = time.perf_counter() - started
        if not isinstance(action, Invalid):
            turn.status = "ok"
        elif len(out.token_ids) >= room:
            turn.status = "truncated"
        return action, out

    async def _continue(self, room: int) -> tuple[Generation, str]:
        """What the engine generates, and its text. A generation that failed is an aborted one without tokens.

        Raises what the codec does wrong."""
        call = partial(self.engine.generate, self.ledger.context(), room, self.protocol.stop)
        try:
            out = checked_generation(await within(self.failures.engine_timeout_s, call), room)
        except Exception as error:
            return self._nothing_generated(error)
        try:
            text = self.codec.decode(out.token_ids)
        except UnknownToken as error:
            return self._nothing_generated(error)
        if not isinstance(text, str):
            raise TypeError(f"the codec decoded to {type(text).__name__}, not to text")
        return out, text

    def _nothing_generated(self, error: Exception) -> tuple[Generation, str]:
        logger.warning("a generation failed: %s", reason(error))
        return Generation([], aborted=True, detail=reason(error)), ""

    async def _look_up(self, record: Trajectory, turn: Turn, queries: tuple[str, ...]) -> str | None:
        """Search, and show what was found; or the status with which the episode ends: the search failed and
        that is to be masked, or there is no room for an observation and a turn after it."""
        total = self._room() - self.budget.min_turn_tokens
        total = min(total, self.budget.max_observation_tokens or total)
        if total < 1:
            return "token_limit"
        turn.queries = list(queries)
        turn.repeated_queries = self._repeated(queries)
        started = time.perf_counter()
        results = await self._search(record, queries)
        turn.tool_s = time.perf_counter() - started
        if failed := [result for result in results if isinstance(result, Failure)]:
            turn.status = "tool_failure"
            first = min(failed, key=lambda failure: failure.kind not in self.failures.mask)
            record.failed(first.kind, first.detail)
            if record.masked(self.failures.mask):
                return "tool_failure"
        per_query = self.budget.max_query_observation_tokens
        fitted = fit_observation(self.protocol, queries, results, self.codec.encode, per_query, total)
        if fitted is None:
            return "token_limit"
        ids, documents = fitted
        self._observe(turn, checked_ids(ids))
        turn.documents = documents
        return None

    async def _search(self, record: Trajectory, queries: Sequence[str]) -> list[list[Document] | Failure]:
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

    async def _ask(self, queries: Sequence[str]) -> list[list[Document] | Failure]:
        call = partial(self.searcher.search, queries)
        try:
            return checked_results(await within(self.failures.tool_timeout_s, call), len(queries))
        except Exception as error:
            logger.warning("a search failed: %s", reason(error))
            shown = TIMED_OUT if isinstance(error, Late) else NO_ANSWER
            return [Failure(shown, "tool", reason(error))] * len(queries)

    async def _wait(self, record: Trajectory, attempt: int) -> None:
        record.retries += 1
        await asyncio.sleep(self.failures.wait_s * 2**attempt)

    def _hint(self, turn: Turn) -> str | None:
        """Tell the policy what a turn should be; or the status with which the episode ends."""
        ids = checked_ids(self.codec.encode(self.protocol.invalid_hint or ""))
        if len(ids) > self._room() - self.budget.min_turn_tokens:
            return "token_limit"
        self._observe(turn, ids)
        return None

    def _observe(self, turn: Turn, ids: list[int]) -> None:
        self.ledger.observed(ids)
        turn.observed_tokens = len(ids)

    def _repeated(self, queries: Sequence[str]) -> int:
        """How many of a turn's queries have been asked before; remembers them for the turns to come."""
        before = len(self._asked)
        self._asked.update(map(query_key, queries))
        return len(queries) - (len(self._asked) - before)
