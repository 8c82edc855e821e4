"""Replays the first turns of an earlier episode, then lets the policy continue.

A past turn is what the policy generated, as token ids, and the results of its calls. The turn loop runs over
past turns as over any others: it parses them, counts them against the limits, fits their observations and
rewrites the context where they say so. So the policy continues in the very context that these turns make,
with the turns and tokens that are left to it. Past turns are neither generated nor searched again. An engine
that keeps a state of its own (a conversation, a count of turns) gets each of them by `recall`, if it has that
method.

The past may also be changed: a call gets another result, as when a retriever's passages are tried out one by
one (rag_r1/retriever/data/correctness.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.interfaces import Engine, Generation, Tool, call_tool
from rag_r1.agent.trajectory import CallRecord
from rag_r1.protocols import Document, Refusal
from rag_r1.protocols.retriever_query import Context


@dataclass(frozen=True)
class ReplayTurn:
    """A turn that is played back. `results`: by the call's key (`call_key`), the documents of each of its
    calls that was answered, or the Refusal of one that was not accepted. A call that failed is not in it."""

    token_ids: tuple[int, ...]
    results: Mapping[str, tuple[Document, ...] | Refusal] = field(default_factory=dict)

    @classmethod
    def of(cls, token_ids: Sequence[int], calls: Sequence[CallRecord]) -> ReplayTurn:
        """The turn with these generated token ids and the results in the records of its calls, with the
        documents as they were shown."""
        answered = (call for call in calls if call.status != "failed" and call.documents is not None)
        results = {call_key(call.tool, call.arguments): _documents_or_refusal(call) for call in answered}
        return cls(tuple(token_ids), results)


def _documents_or_refusal(call: CallRecord) -> tuple[Document, ...] | Refusal:
    """The result of the call, as it was shown to the policy."""
    documents = tuple(call.documents or ())
    if call.status == "refused":
        return Refusal("\n".join(document.contents for document in documents))
    return documents


def call_key(tool: str, arguments: Mapping[str, Any]) -> str:
    """A key that is the same for equal calls; no two calls of a turn are equal."""
    return json.dumps([tool, dict(arguments)], sort_keys=True, default=str)


def make_replay(
    engine: Engine, tools: Mapping[str, Tool], past: Sequence[ReplayTurn]
) -> tuple[Engine, dict[str, Any]]:
    """An engine and tools for one episode, which play the past turns back before they use these."""
    engine_with_past = ReplayEngine(engine, past)
    return engine_with_past, {name: _ReplayTool(name, tool, engine_with_past) for name, tool in tools.items()}


class ReplayEngine:
    """Returns the past turns one by one, then what the engine generates."""

    def __init__(self, engine: Engine, past: Sequence[ReplayTurn]):
        self.engine = engine
        self.past = tuple(past)
        #: Number of turns that were played back; the calls of the last of them are made now.
        self.played = 0
        #: Whether the policy has begun to continue.
        self._continues = False

    @property
    def turn(self) -> ReplayTurn | None:
        """The past turn that is being played; None as soon as the policy has continued."""
        return self.past[self.played - 1] if self.played and not self._continues else None

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Returns the next past turn, or what the engine generates after them. Raises ValueError if the
        limits leave less room than a past turn needs."""
        if self.played == len(self.past):
            self._continues = True
            return await self.engine.generate(context, max_tokens, stop)
        ids = list(self.past[self.played].token_ids)
        if len(ids) > max_tokens:
            raise ValueError(
                f"turn {self.played} has {len(ids)} tokens and only {max_tokens} are allowed: play it with "
                "the limits of the earlier episode"
            )
        if callable(restore_turn := getattr(self.engine, "restore_turn", None)):
            restore_turn(context, ids)
        self.played += 1
        return Generation(ids)


class _ReplayTool:
    """A tool whose calls of past turns have the results that they had then."""

    reads_context = True  # so that the wrapped tool gets its context

    def __init__(self, name: str, tool: Tool, engine: ReplayEngine):
        self._name, self._tool, self._engine = name, tool, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def call(self, arguments: Sequence[Mapping[str, Any]], context: Context) -> Sequence[Any]:
        """Returns the past results of the calls, or those of the tool after the past turns. Raises ValueError
        for a call that the past turn has not made, as when its text parses differently now."""
        if (turn := self._engine.turn) is None:
            return await call_tool(self._tool, arguments, context)
        results = [self._past_result(turn, args) for args in arguments]
        return [result if isinstance(result, Refusal) else list(result) for result in results]

    def _past_result(self, turn: ReplayTurn, args: Mapping[str, Any]) -> tuple[Document, ...] | Refusal:
        """The result that a call had in a past turn. Raises ValueError if that turn did not make the call."""
        try:
            return turn.results[call_key(self._name, args)]
        except KeyError:
            number = self._engine.played - 1
            raise ValueError(
                f"turn {number} of the earlier episode did not call {self._name} with {args}: "
                "replay it with the protocol and tools it was played with"
            ) from None
