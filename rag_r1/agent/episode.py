"""The episode: runs one question from prompt to answer as one coroutine.

    generate -> parse -> call -> observe -> generate -> ... -> answer

This module depends on neither veRL nor torch nor HTTP: the engine, the tools and the tokenizer are passed in
through the small interfaces of interfaces.py. Each trajectory is a coroutine of its own and does not wait for
others; all calls of a turn are made at once. One table maps an action's kind to the method that carries it
out; the code never refers to a protocol by name. Everything that the policy sees goes through the ledger, so
the training row is the context.

An episode always ends with a status (see trajectory.STATUSES), even if one of its parts raises, hangs or
returns something invalid (validation.py checks). Here and in tool_executor.py, which makes the calls, and
nowhere else, each failure gets its type, is retried and is recorded, as failures.py describes. Unless its
kind is masked, a failed call is shown to the policy as a short error and the episode goes on. `run` raises
nothing but the cancellation of the episode itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

from rag_r1.agent.budget import Budget
from rag_r1.agent.events import Event, Observer, SafeObserver
from rag_r1.agent.failures import FailurePolicy
from rag_r1.agent.interfaces import Codec, Engine, Generation, Tool, UnknownTokenError
from rag_r1.agent.memory import Memory
from rag_r1.agent.replay import ReplayTurn, make_replay
from rag_r1.agent.tokens.ledger import Ledger
from rag_r1.agent.tool_executor import ToolExecutor
from rag_r1.agent.trajectory import CallRecord, Trajectory, Turn, call_context, query_key
from rag_r1.agent.truncation import fit_observation
from rag_r1.agent.validation import checked_generation, checked_ids, error_line, with_timeout
from rag_r1.protocols import (
    Action,
    Answer,
    Backtrack,
    Calls,
    Failure,
    Invalid,
    Plan,
    Protocol,
    Search,
    Summary,
    Think,
)

logger = logging.getLogger(__name__)


class Episode:
    """Runs one question. After `run`, `ledger` holds the tokens and the returned trajectory the record.

    `tools` maps names to tools; the built-in search calls the tool `search` (see rag_r1.tools.searching).
    `observer` receives the events of events.py while the episode runs.
    """

    def __init__(
        self,
        protocol: Protocol,
        budget: Budget,
        engine: Engine,
        tools: Mapping[str, Tool],
        codec: Codec,
        failures: FailurePolicy | None = None,
        observer: Observer | None = None,
    ):
        self.protocol, self.budget = protocol, budget
        self.engine, self.tools, self.codec = engine, tools, codec
        self.failures = failures or FailurePolicy()
        self.observer = SafeObserver(observer) if observer else None
        self.ledger, self.memory = Ledger([]), Memory()
        self._asked: set[str] = set()
        #: Calls of each tool that it accepted.
        self._called: Counter[str] = Counter()
        self._turns_left = 0
        #: Handlers by kind of action. Each returns None, or the status with which the episode ends.
        self._does = {
            Search.kind: self._call,
            Calls.kind: self._call,
            Answer.kind: self._answer,
            Plan.kind: self._go_on,
            Think.kind: self._go_on,
            Summary.kind: self._rewrite,
            Backtrack.kind: self._rewrite,
            Invalid.kind: self._hint,
        }

    async def run(
        self, trajectory_id: str, question: str, prompt_ids: Sequence[int] | Awaitable[Sequence[int]]
    ) -> Trajectory:
        """Run the episode from the token ids of a prompt, or from an awaitable that gives them.

        Without a question, or if the prompt cannot be made or does not fit, nothing is generated: the status
        is `bad_row`, and the ledger stays empty. Raises nothing but its own cancellation.
        """
        self.ledger, self.memory, self._asked = Ledger([]), Memory(), set()
        self._called = Counter()
        problem = await self._begin(question, prompt_ids)
        started = time.perf_counter()
        question = question if isinstance(question, str) else ""
        tokens = len(self.ledger.first_prompt)
        record = Trajectory(trajectory_id, question, self.protocol.name, prompt_tokens=tokens)
        if problem:
            logger.warning("trajectory %s cannot be played: %s", trajectory_id, problem)
            record.status = "bad_row"
            self._failed(record, "row", problem)
        else:
            try:
                record.status = await self._play(record)
            except Exception as error:  # an error of the codec, or a bug of ours
                logger.exception("trajectory %s", trajectory_id)
                record.status = "error"
                self._failed(record, "error", error_line(error))
        if record.status in ("turn_limit", "token_limit", "no_action") and record.n_tool_failures:
            record.status = "tool_failure"
        elif record.status in ("turn_limit", "token_limit"):
            self._failed(record, "budget", record.status)
        record.generated_tokens = self.ledger.generated_tokens
        record.observed_tokens = self.ledger.observed_tokens
        record.seconds = time.perf_counter() - started
        if self.observer:
            self._tell(record, "ended", **record.to_dict())
        return record

    async def resume(
        self,
        trajectory_id: str,
        question: str,
        prompt_ids: Sequence[int] | Awaitable[Sequence[int]],
        past: Sequence[ReplayTurn] = (),
    ) -> Trajectory:
        """As `run`, but the episode begins with turns that were played before (replay.py); the policy goes on
        with what they leave of its turns and tokens. A past that cannot be played back is a failure."""
        parts = self.engine, self.tools
        if past:
            self.engine, self.tools = make_replay(*parts, past)
        try:
            return await self.run(trajectory_id, question, prompt_ids)
        finally:
            self.engine, self.tools = parts

    async def _begin(self, question: str, prompt: Sequence[int] | Awaitable[Sequence[int]]) -> str | None:
        """Put the prompt into the ledger. Returns the reason if the episode cannot start, else None."""
        try:
            ids = checked_ids(await prompt if isawaitable(prompt) else prompt)
        except Exception as error:
            return f"no prompt: {error_line(error)}"
        most = self.budget.most_prompt_tokens
        if not isinstance(question, str) or not question:
            return "no question"
        if not ids or (most is not None and len(ids) > most):
            return f"{len(ids)} prompt tokens" + ("" if most is None else f" (at most {most})")
        self.ledger = Ledger(ids, self.budget.row_capacity)
        return None

    async def _play(self, record: Trajectory) -> str:
        """Run turn by turn; returns the status with which the episode ends."""
        for left in range(self.budget.max_turns - (not self.budget.final_turn), -1, -1):
            self._turns_left = left
            room = min(self.budget.max_turn_tokens, self._room())
            if room < 1:
                return "token_limit"
            # Recorded before anything in it can fail.
            turn = Turn("", Invalid.kind, status="invalid", row=self.ledger.row_number)
            record.turns.append(turn)
            self._tell(record, "turn", room=room)
            action, out = await self._generate(record, turn, room)
            if out.aborted:
                self._failed(record, "engine", out.detail)
                return "engine_failure"
            self._tell(record, "tokens", text=turn.text, tokens=turn.generated_tokens, status=turn.status)
            if left == 0 and not isinstance(action, Answer):
                return "turn_limit"
            if ended := await self._does[action.kind](record, turn, action):
                return ended
        return "turn_limit"

    def _room(self) -> int:
        """Tokens that the open row and the episode can still take."""
        room = self.ledger.room
        assert room is not None  # a Budget always limits a row's response
        if self.budget.max_episode_tokens is None:
            return room
        used = self.ledger.generated_tokens + self.ledger.observed_tokens
        return min(room, self.budget.max_episode_tokens - used)

    async def _generate(self, record: Trajectory, turn: Turn, room: int) -> tuple[Action, Generation]:
        started = time.perf_counter()
        out, text = await self._continue(room)
        for attempt in range(self.failures.retries):
            if not out.aborted:
                break
            await self._wait(record, attempt)
            out, text = await self._continue(room)
        action = self.protocol.parse(text)
        self.ledger.generated(out.token_ids, out.logprobs, len(record.turns) - 1)
        role = "call" if isinstance(action, Search | Calls) else action.kind
        self.memory.push(len(record.turns) - 1, role, out.token_ids, out.logprobs)
        turn.text, turn.action, turn.generated_tokens = text, action.kind, len(out.token_ids)
        turn.simulated = self.protocol.simulated(text)
        turn.generate_s = time.perf_counter() - started
        if not isinstance(action, Invalid):
            turn.status = "ok"
        elif len(out.token_ids) >= room:
            turn.status = "truncated"
        return action, out

    async def _continue(self, room: int) -> tuple[Generation, str]:
        """What the engine generates, and its text. A failed generation is an aborted one without tokens.

        Raises the codec's errors, except UnknownTokenError, and TypeError if it returns no text."""
        call = partial(self.engine.generate, self.ledger.context(), room, self.protocol.stop)
        try:
            out = checked_generation(await with_timeout(self.failures.engine_timeout_s, call), room)
        except Exception as error:
            return self._nothing_generated(error)
        try:
            text = self.codec.decode(out.token_ids)
        except UnknownTokenError as error:
            return self._nothing_generated(error)
        if not isinstance(text, str):
            raise TypeError(f"the codec decoded to {type(text).__name__}, not to text")
        return out, text

    def _nothing_generated(self, error: Exception) -> tuple[Generation, str]:
        logger.warning("a generation failed: %s", error_line(error))
        return Generation([], aborted=True, detail=error_line(error)), ""

    async def _answer(self, record: Trajectory, turn: Turn, action: Answer) -> str | None:
        """End with the answer; or, if it comes too early and there is another turn, take it for a thought."""
        if self._turns_left and self._room() >= self.budget.min_turn_tokens and self._is_early(record, turn):
            turn.action = self.memory.entries[-1].role = Think.kind
            return None
        record.answer = action.text
        self._tell(record, "answer", text=action.text)
        return "answered"

    def _is_early(self, record: Trajectory, turn: Turn) -> bool:
        """Is this before `min_actions` turns, or is the state of the memory not below `max_state`? Raises
        ValueError if the state is unknown."""
        if self.budget.max_state is None:
            unsure = False
        elif (state := self.memory.state()) is None:
            raise ValueError("rag_r1.agent.max_state needs the log-probs of generated tokens")
        else:
            turn.state, unsure = state, state >= self.budget.max_state
        actions = sum(turn.action != Invalid.kind for turn in record.turns[:-1])
        return unsure or actions < self.budget.min_actions

    async def _call(self, record: Trajectory, turn: Turn, action: Search | Calls) -> str | None:
        """Make the calls and show their results. Returns the status with which the episode ends if a failed
        call is to be masked, or if there is no room for an observation and another turn; else None."""
        total = self._room() - self.budget.min_turn_tokens
        total = min(total, self.budget.max_observation_tokens or total)
        if total < 1:
            return "token_limit"
        calls = action.calls
        turn.calls = [CallRecord(call.tool, dict(call.arguments)) for call in calls]
        turn.repeated_queries = self._repeated(turn.queries)
        if self.observer:
            self._tell(
                record, "calls", calls=[{"tool": c.tool, "arguments": c.arguments} for c in turn.calls]
            )
        started = time.perf_counter()
        guard = ToolExecutor(
            self.tools,
            self.failures,
            partial(self._wait, record),
            self._called,
            partial(call_context, record, self.protocol.thought),
        )
        results = await guard.call(turn.calls)
        turn.tool_s = time.perf_counter() - started
        if failed := [result for result in results if isinstance(result, Failure)]:
            turn.status = "tool_failure"
            first = min(failed, key=lambda failure: failure.kind not in self.failures.mask)
            self._failed(record, first.kind, first.detail)
            if record.masked(self.failures.mask):
                return "tool_failure"
        per_query = self.budget.max_query_observation_tokens
        words = [call.words for call in calls]
        fitted = fit_observation(self.protocol, words, results, self.codec.encode, per_query, total)
        if fitted is None:
            return "token_limit"
        ids, documents = fitted
        self._observe(record, turn, checked_ids(ids))
        for call, shown in zip(turn.calls, documents, strict=True):
            call.documents = shown
        if self.observer:
            self._tell(record, "documents", calls=[call.to_dict() for call in turn.calls])
        return None

    async def _go_on(self, record: Trajectory, turn: Turn, action: Action) -> None:
        """There is no observation: the next turn follows."""

    async def _rewrite(self, record: Trajectory, turn: Turn, action: Summary | Backtrack) -> str | None:
        """Take turns out of the context, as memory.py describes. Returns the status with which the episode
        ends if that leaves no room for another turn; else None."""
        if isinstance(action, Backtrack):
            removed, always = self.memory.backtrack(action.pops), False
        else:
            removed, always = self.memory.summarise(action.span), action.span == "everything"
        if not removed and not always:
            return None  # there is nothing to take out: the context grows by this turn
        ids = [*self.ledger.first_prompt, *self.memory.ids()]
        room = self.ledger.capacity.room(len(ids))
        if room is not None and room < self.budget.min_turn_tokens:
            return "token_limit"
        self.ledger.rewrite(ids)
        turn.removed = removed
        self._tell(record, "rewrite", tokens=len(ids), removed=removed)
        return None

    async def _hint(self, record: Trajectory, turn: Turn, action: Action) -> str | None:
        """Show the protocol's hint for an invalid turn, or return the status with which the episode ends."""
        if (hint := self.protocol.hint) is None:
            return "token_limit" if turn.status == "truncated" else "no_action"
        ids = checked_ids(self.codec.encode(hint))
        if len(ids) > self._room() - self.budget.min_turn_tokens:
            return "token_limit"
        self._observe(record, turn, ids)
        return None

    def _observe(self, record: Trajectory, turn: Turn, ids: list[int]) -> None:
        """Put what the environment adds into the context. It begins with the end of the policy's turn, which
        is left out if the policy has written that itself."""
        end = self.protocol.end_token
        if end and self.codec.encode(end) == ids[:1] == self.ledger.context()[-1:]:
            ids = ids[1:]
        self.ledger.observed(ids, len(record.turns) - 1)
        self.memory.observed(ids)
        turn.observed_tokens = len(ids)

    def _repeated(self, queries: Sequence[str]) -> int:
        """How many of a turn's queries were sent before in this episode; they are noted for later turns."""
        before = len(self._asked)
        self._asked.update(map(query_key, queries))
        return len(queries) - (len(self._asked) - before)

    async def _wait(self, record: Trajectory, attempt: int) -> None:
        """Count a retry and wait before it."""
        record.retries += 1
        await asyncio.sleep(self.failures.wait_s * 2**attempt)

    def _failed(self, record: Trajectory, kind: str, detail: str) -> None:
        record.failed(kind, detail)
        self._tell(record, "failure", kind=kind, detail=detail)

    def _tell(self, record: Trajectory, what: str, /, **data: Any) -> None:
        if self.observer:
            self.observer(Event(record.id, what, max(len(record.turns) - 1, 0), data))
