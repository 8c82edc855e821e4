"""Replays the first turns of an earlier episode, then lets the policy continue.

A past turn consists of the token ids that the policy generated and of the results of its calls. The turn loop
treats past turns like all others: it parses them, counts them against the limits, fits their observations and
rewrites the context where they ask for it. The policy therefore continues in exactly the context of the
earlier episode, with the turns and tokens that remain. Past turns are neither generated nor searched again.
An engine that keeps state (a conversation, a count of turns) is given each past turn through its method
`restore_turn`, if it has one.

The past may also be changed: a call can get another result, for example to try out the passages of a
retriever one by one (rag_r1/retriever/data/correctness.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.interfaces import Engine, Generation, Tool, call_tool
from rag_r1.agent.trajectory import CallRecord
from rag_r1.protocols import Document, Refusal
from rag_r1.protocols.retriever_query import Context


@dataclass(frozen=True)
class ReplayTurn:
    """A turn that is played back."""

    #: What the policy generated.
    token_ids: tuple[int, ...]
    #: For each call, by its `call_key`: the documents of its answer, or the Refusal if it was not accepted.
    #: A call that failed is left out.
    results: Mapping[str, tuple[Document, ...] | Refusal] = field(default_factory=dict)

    @classmethod
    def of(cls, token_ids: Sequence[int], calls: Sequence[CallRecord]) -> ReplayTurn:
        """Return the turn with these token ids, in which each call gets the result that is in its record: the
        documents as they were shown."""
        results = {}
        earlier_calls: Counter[str] = Counter()
        for call in calls:
            key = call_key(call.tool, call.arguments, earlier_calls)
            if call.status != "failed" and call.documents is not None:
                results[key] = _documents_or_refusal(call)
        return cls(tuple(token_ids), results)


def _documents_or_refusal(call: CallRecord) -> tuple[Document, ...] | Refusal:
    """Return the result of a call as it was shown to the policy."""
    documents = tuple(call.documents or ())
    if call.status == "refused":
        return Refusal("\n".join(document.contents for document in documents))
    return documents


def call_key(tool: str, arguments: Mapping[str, Any], earlier_calls: Counter[str]) -> str:
    """Return the key of a call within its turn. Equal calls are numbered in their order: `earlier_calls`
    counts those before this one, which is added to it."""
    key = json.dumps([tool, dict(arguments)], sort_keys=True, default=str)
    earlier_calls[key] += 1
    return f"{key} {earlier_calls[key]}"


def make_replay(
    engine: Engine, tools: Mapping[str, Tool], past: Sequence[ReplayTurn]
) -> tuple[Engine, dict[str, Any]]:
    """Return an engine and tools for one episode, which play the past turns back before they use the engine
    and the tools that they wrap."""
    engine_with_past = ReplayEngine(engine, past)
    return engine_with_past, {name: _ReplayTool(name, tool, engine_with_past) for name, tool in tools.items()}


class ReplayEngine:
    """An engine that returns the past turns one by one, and then what the wrapped engine generates."""

    def __init__(self, engine: Engine, past: Sequence[ReplayTurn]):
        self.engine = engine
        self.past = tuple(past)
        #: Number of turns that were played back; calls that are made now are those of the last of them.
        self.played = 0
        #: How often each call was made in the turn that is being played back (see `call_key`).
        self.earlier_calls: Counter[str] = Counter()
        #: The context of the last turn that was played back, which is the ledger's own list, and its length.
        self._context: list[int] | None = None
        self._length = 0
        #: Whether the policy has begun to continue.
        self._continues = False

    @property
    def turn(self) -> ReplayTurn | None:
        """The past turn that is being played back; None once the policy continues."""
        return self.past[self.played - 1] if self.played and not self._continues else None

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Return the next past turn or, after the last one, what the wrapped engine generates. Raises
        ValueError if the limits leave less room than the past turn needs."""
        if context is self._context and len(context) == self._length:
            self.played -= 1  # the turn was not accepted, and is asked for again
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
        self._context, self._length = context, len(context)
        self.earlier_calls.clear()
        return Generation(ids)


class _ReplayTool:
    """A tool that answers the calls of past turns with their recorded results."""

    reads_context = True  # needed to pass the context on to the wrapped tool

    def __init__(self, name: str, tool: Tool, engine: ReplayEngine):
        self._name, self._tool, self._engine = name, tool, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def call(self, arguments: Sequence[Mapping[str, Any]], context: Context) -> Sequence[Any]:
        """Return the recorded results of the calls or, after the past turns, those of the wrapped tool.
        Raises ValueError for a call that failed in the past turn or was not made there, e.g. because its text
        is now parsed differently."""
        if (turn := self._engine.turn) is None:
            return await call_tool(self._tool, arguments, context)
        earlier_calls = self._engine.earlier_calls.copy()
        results = [self._past_result(turn, args, earlier_calls) for args in arguments]
        self._engine.earlier_calls = earlier_calls  # only now: a call that raises is made again
        return [result if isinstance(result, Refusal) else list(result) for result in results]

    def _past_result(
        self, turn: ReplayTurn, args: Mapping[str, Any], earlier_calls: Counter[str]
    ) -> tuple[Document, ...] | Refusal:
        """Return the result of a call in a past turn. Raises ValueError if there is none."""
        try:
            return turn.results[call_key(self._name, args, earlier_calls)]
        except KeyError:
            index = self._engine.played - 1
            raise ValueError(
                f"turn {index} of the earlier episode has no result of {self._name} for {args}: the call "
                "was not made or failed; replay it with the protocol and tools it was played with"
            ) from None
