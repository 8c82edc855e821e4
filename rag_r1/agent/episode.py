"""The episode: runs one question from prompt to answer as one coroutine.

    generate -> parse -> call -> observe -> generate -> ... -> answer

The engine, the tools and the tokenizer are passed in through the small interfaces of interfaces.py, so this
module needs neither veRL nor torch nor HTTP. Each episode is a coroutine and waits for no other. The table in
actions.py maps each kind of action to the coroutine that carries it out on the state of the episode
(episode_state.py).

An episode always ends with a status (`Status` in trajectory.py), even if the engine, a tool or the tokenizer
raises, hangs or returns something invalid (validation.py checks that). Failures are classified, retried and
recorded only here and in tool_executor.py, which makes the calls; failures.py describes how. `run` raises
nothing but its own cancellation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable

from rag_r1.agent.actions import ACTIONS
from rag_r1.agent.budget import Budget
from rag_r1.agent.episode_state import EpisodeState
from rag_r1.agent.events import Observer, SafeObserver
from rag_r1.agent.failures import NO_RETRIES, FailurePolicy, error_line
from rag_r1.agent.interfaces import Codec, Engine, Generation, Tool, UnknownTokenError
from rag_r1.agent.memory import Memory
from rag_r1.agent.replay import ReplayTurn, make_replay
from rag_r1.agent.tokens.ledger import Ledger
from rag_r1.agent.trajectory import Status, Trajectory, Turn
from rag_r1.agent.validation import checked_generation, checked_ids
from rag_r1.io.call_timeout import with_timeout
from rag_r1.protocols import Action, Answer, Calls, Invalid, Protocol, Search

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Episode:
    """Runs one question. `run` returns the record of the episode, and leaves its tokens in `ledger`."""

    protocol: Protocol
    budget: Budget
    engine: Engine
    #: The tools by name. A search calls the tool `search` (`rag_r1.tools.search_tools` makes one).
    tools: Mapping[str, Tool]
    codec: Codec
    #: How failures are handled; None: they are not retried, and the policy is shown that a call failed.
    failures: FailurePolicy | None = None
    #: Receives the events of events.py while the episode runs.
    observer: Observer | None = None
    #: The tokens and the memory of the latest run.
    ledger: Ledger = field(init=False, default_factory=lambda: Ledger([]))
    memory: Memory = field(init=False, default_factory=Memory)

    def __post_init__(self) -> None:
        self.failures = self.failures or NO_RETRIES
        self.observer = SafeObserver(self.observer) if self.observer else None

    async def run(
        self, trajectory_id: str, question: str, prompt_ids: Sequence[int] | Awaitable[Sequence[int]]
    ) -> Trajectory:
        """Run the episode from the token ids of a prompt, or from an awaitable that returns them.

        If there is no question, or the prompt cannot be made or is too long, nothing is generated: the status
        is `bad_row`, and the ledger stays empty. Raises nothing but its own cancellation.
        """
        self.ledger = Ledger([])
        self.memory = Memory()
        problem = await self._begin(question, prompt_ids)
        started = time.perf_counter()
        state = self._new_state(trajectory_id, question if isinstance(question, str) else "")
        record = state.record
        if problem:
            logger.warning("trajectory %s cannot be played: %s", trajectory_id, problem)
            record.status = "bad_row"
            state.add_failure("row", problem)
        else:
            try:
                record.status = await self._play(state)
            except Exception as error:  # an error of the codec, or a bug
                logger.exception("trajectory %s", trajectory_id)
                record.status = "error"
                state.add_failure("error", error_line(error))
        record.seconds = time.perf_counter() - started
        self._finish(state)
        return record

    async def resume(
        self,
        trajectory_id: str,
        question: str,
        prompt_ids: Sequence[int] | Awaitable[Sequence[int]],
        past: Sequence[ReplayTurn] = (),
    ) -> Trajectory:
        """Run the episode as `run` does, but begin by replaying the turns in `past` (replay.py); the policy
        continues with the turns and tokens that remain. If the past cannot be replayed, this is recorded as a
        failure of the engine or of a tool."""
        engine, tools = self.engine, self.tools
        if past:
            self.engine, self.tools = make_replay(engine, tools, past)
        try:
            return await self.run(trajectory_id, question, prompt_ids)
        finally:
            self.engine, self.tools = engine, tools

    def _finish(self, state: EpisodeState) -> None:
        """Complete the record: add the numbers of tokens and, without an answer, the cause; then emit the
        event `ended`."""
        record = state.record
        if record.status in ("turn_limit", "token_limit", "no_action") and record.n_tool_failures:
            record.status = "tool_failure"
        elif record.status in ("turn_limit", "token_limit"):
            state.add_failure("budget", record.status)
        record.generated_tokens = self.ledger.generated_tokens
        record.observed_tokens = self.ledger.observed_tokens
        if self.observer:
            state.emit("ended", **record.to_dict())

    def _new_state(self, trajectory_id: str, question: str) -> EpisodeState:
        """Return the state before the first turn, with an empty record."""
        prompt_tokens = len(self.ledger.first_prompt)
        return EpisodeState(
            protocol=self.protocol,
            budget=self.budget,
            tools=self.tools,
            codec=self.codec,
            failures=self.failures,
            observer=self.observer,
            record=Trajectory(trajectory_id, question, self.protocol.name, prompt_tokens=prompt_tokens),
            ledger=self.ledger,
            memory=self.memory,
        )

    async def _begin(self, question: str, prompt: Sequence[int] | Awaitable[Sequence[int]]) -> str | None:
        """Put the prompt into the ledger. Returns None, or the reason why the episode cannot start."""
        try:
            ids = checked_ids(await prompt if isawaitable(prompt) else prompt)
        except Exception as error:
            return f"no prompt: {error_line(error)}"
        limit = self.budget.prompt_limit
        if not isinstance(question, str) or not question:
            return "no question"
        if not ids or (limit is not None and len(ids) > limit):
            return f"{len(ids)} prompt tokens" + ("" if limit is None else f" (at most {limit})")
        self.ledger = Ledger(ids, self.budget.row_capacity)
        return None

    async def _play(self, state: EpisodeState) -> Status:
        """Run turn by turn; returns the status with which the episode ends."""
        record = state.record
        for turns_left in reversed(range(self.budget.max_turns + int(self.budget.final_turn))):
            state.turns_left = turns_left
            room = min(self.budget.max_turn_tokens, state.room)
            if room < 1:
                return "token_limit"
            # The turn is recorded before anything in it can fail.
            turn = Turn("", Invalid.kind, status="invalid", row=self.ledger.row_index)
            record.turns.append(turn)
            state.emit("turn", room=room)
            action, generation = await self._generate(state, turn, room)
            if generation.aborted:
                state.add_failure("engine", generation.detail)
                return "engine_failure"
            state.emit("tokens", text=turn.text, tokens=turn.generated_tokens, status=turn.status)
            if turns_left == 0 and not isinstance(action, Answer):
                return "turn_limit"
            if status := await ACTIONS[action.kind](state, turn, action):
                return status
        return "turn_limit"

    async def _generate(self, state: EpisodeState, turn: Turn, room: int) -> tuple[Action, Generation]:
        """Generate at most `room` tokens, with the retries of the failure policy, and record them in the
        turn, the ledger and the memory. Returns the action of the turn and the last generation."""
        started = time.perf_counter()
        for attempt in range(self.failures.retries + 1):
            if attempt:
                await state.wait(attempt - 1)
            generation, text = await self._generate_once(room)
            if not generation.aborted:
                break
        action = self.protocol.parse(text)
        turn_index = len(state.record.turns) - 1
        span = self.ledger.append_generated(generation.token_ids, generation.logprobs, turn_index)
        self.memory.push("call" if isinstance(action, Search | Calls) else action.kind, span)
        turn.text = text
        turn.action = action.kind
        turn.generated_tokens = len(generation.token_ids)
        turn.simulated = self.protocol.simulated(text)
        turn.generate_s = time.perf_counter() - started
        if not isinstance(action, Invalid):
            turn.status = "ok"
        elif len(generation.token_ids) >= room:
            turn.status = "truncated"
        return action, generation

    async def _generate_once(self, room: int) -> tuple[Generation, str]:
        """Return one generation of at most `room` tokens, and its text. A failed generation is returned as an
        aborted one without tokens.

        Raises the errors of the codec, except UnknownTokenError, and TypeError if it does not decode to text.
        """
        try:
            call = self.engine.generate(self.ledger.context(), room, self.protocol.stop)
            generation = checked_generation(await with_timeout(self.failures.engine_timeout_s, call), room)
        except Exception as error:
            return self._failed_generation(error)
        try:
            text = self.codec.decode(generation.token_ids)
        except UnknownTokenError as error:
            return self._failed_generation(error)
        if not isinstance(text, str):
            raise TypeError(f"the codec decoded to {type(text).__name__}, not to text")
        return generation, text

    def _failed_generation(self, error: Exception) -> tuple[Generation, str]:
        """Log the error; returns an aborted generation without tokens, and an empty text."""
        logger.warning("a generation failed: %s", error_line(error))
        return Generation([], aborted=True, detail=error_line(error)), ""
