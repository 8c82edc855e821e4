"""Carries out the actions of the policy: it answers, calls tools, rewrites the context, or does nothing.

The table `ACTIONS` maps each kind of action to one coroutine, so nothing here depends on a particular
protocol. A coroutine changes the state of the episode and returns None, or the status with which the episode
ends. All calls of a turn are made at once (tool_executor.py), and their results are shortened to the budget
(truncation.py). A failed call ends the episode if its kind of failure is masked (failures.py); otherwise the
policy is shown a short error, and the episode continues.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rag_r1.agent.episode_state import EpisodeState
from rag_r1.agent.trajectory import CallRecord, Status, Turn, query_key
from rag_r1.agent.truncation import fit_observation
from rag_r1.agent.validation import checked_ids
from rag_r1.protocols import Action, Answer, Backtrack, Calls, Failure, Invalid, Plan, Search, Summary, Think


async def _answer(state: EpisodeState, turn: Turn, action: Answer) -> Status | None:
    """End with the answer. If it comes too early and another turn is possible, treat it as a thought."""
    if state.turns_left and state.spare_room >= 0:
        if state.budget.max_state is not None:
            turn.state = state.memory.state()
        if _is_early(state, turn):
            turn.action = state.memory.entries[-1].role = Think.kind
            return None
    state.record.answer = action.text
    state.emit("answer", text=action.text)
    return "answered"


def _is_early(state: EpisodeState, turn: Turn) -> bool:
    """Whether the memory's state is not below `max_state`, or fewer than `min_actions` turns with an action
    came before. Raises ValueError if that state is needed, but the engine gives no log-probs."""
    max_state = state.budget.max_state
    if max_state is not None:
        if turn.state is None:
            raise ValueError("rag_r1.agent.max_state needs the log-probs of generated tokens")
        if turn.state >= max_state:
            return True
    actions = sum(earlier.action != Invalid.kind for earlier in state.record.turns[:-1])
    return actions < state.budget.min_actions


async def _call(state: EpisodeState, turn: Turn, action: Search | Calls) -> Status | None:
    """Make the calls and show their results to the policy. The episode ends if the failure of a call is
    masked, or if there is no room for the observation and another turn."""
    budget = state.budget
    room = state.spare_room
    if room < 1:
        return "token_limit"
    turn.calls = [CallRecord(call.tool, dict(call.arguments)) for call in action.calls]
    turn.repeated_queries = _count_repeated(state.sent_queries, turn.queries)
    if state.observer:  # making the event takes time
        state.emit("calls", calls=[{"tool": call.tool, "arguments": call.arguments} for call in turn.calls])
    started = time.perf_counter()
    results = await state.executor.call(turn.calls)
    turn.tool_s = time.perf_counter() - started
    if (status := _record_failure(state, turn, results)) is not None:
        return status
    fitted = fit_observation(
        state.protocol,
        [call.text for call in action.calls],
        results,
        state.codec.encode,
        max_query_tokens=budget.max_query_observation_tokens,
        max_tokens=min(room, budget.max_observation_tokens or room),
    )
    if fitted is None:
        return "token_limit"
    for call, call_documents in zip(turn.calls, fitted.documents, strict=True):
        call.documents = call_documents
    state.observe(turn, checked_ids(fitted.ids), fitted.text)
    if state.observer:  # making the event takes time
        state.emit("documents", calls=[call.to_dict() for call in turn.calls])
    return None


def _record_failure(state: EpisodeState, turn: Turn, results: Sequence[object]) -> Status | None:
    """Record the failure of a turn if one of its calls failed. Returns the status with which the episode ends
    if that failure is masked, else None."""
    failures = [result for result in results if isinstance(result, Failure)]
    if not failures:
        return None
    turn.status = "tool_failure"
    mask = state.failures.mask
    # One failure is recorded for the turn, of a masked kind if there is one: that decides whether it ends.
    failure = min(failures, key=lambda failure: failure.kind not in mask)
    state.add_failure(failure.kind, failure.detail)
    return "tool_failure" if state.record.masked(mask) else None


def _count_repeated(sent_queries: set[str], queries: Sequence[str]) -> int:
    """Return how many queries of a turn were already sent, earlier in the episode or in the turn, and add
    them all to `sent_queries`."""
    n_earlier = len(sent_queries)
    sent_queries.update(map(query_key, queries))
    return len(queries) - (len(sent_queries) - n_earlier)


async def _continue(state: EpisodeState, turn: Turn, action: Action) -> None:
    """Do nothing: a plan or a thought is followed by the next turn, without an observation."""


async def _rewrite(state: EpisodeState, turn: Turn, action: Summary | Backtrack) -> Status | None:
    """Remove turns from the context, as memory.py describes. The episode ends if the new context leaves no
    room for another turn."""
    ledger, memory = state.ledger, state.memory
    is_backtrack = isinstance(action, Backtrack)
    removed = memory.backtrack(action.pops) if is_backtrack else memory.summarise(action.span)
    summarises_all = not is_backtrack and action.span == "everything"
    if not removed and not summarises_all:
        return None  # there is no turn to remove: the context just grows by this one
    ids = [*ledger.first_prompt, *memory.ids()]
    room = ledger.capacity.room(len(ids))
    if room is not None and room < state.budget.min_turn_tokens:
        return "token_limit"
    ledger.rewrite(ids)
    turn.removed = removed
    state.emit("rewrite", tokens=len(ids), removed=removed)
    return None


async def _hint(state: EpisodeState, turn: Turn, action: Action) -> Status | None:
    """Show the protocol's hint after an invalid turn. The episode ends if the protocol has none, or if there
    is no room for it."""
    if (hint := state.protocol.hint) is None:
        return "token_limit" if turn.status == "truncated" else "no_action"
    ids = checked_ids(state.codec.encode(hint))
    if len(ids) > state.spare_room:
        return "token_limit"
    state.observe(turn, ids, hint)
    return None


#: The coroutine that carries out each kind of action.
ACTIONS: dict[str, Callable[[EpisodeState, Turn, Any], Awaitable[Status | None]]] = {
    Search.kind: _call,
    Calls.kind: _call,
    Answer.kind: _answer,
    Plan.kind: _continue,
    Think.kind: _continue,
    Summary.kind: _rewrite,
    Backtrack.kind: _rewrite,
    Invalid.kind: _hint,
}
