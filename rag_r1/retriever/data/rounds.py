"""The rounds of a trajectory, each one search with what stood before it.

A round is one search: the query, and the turns before it, with which the episode can go on from here
(rag_r1/agent/replay.py). A turn may hold several searches; each is a round, and the others of its turn keep
what they found. The queries of a round's history are those of the turns before, as for the retriever
(rag_r1/protocols/retriever_query.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rag_r1.agent import ReplayTurn, Trajectory, Turn
from rag_r1.agent.trajectory import CallRecord, call_context
from rag_r1.protocols import Call, Document, Protocol
from rag_r1.protocols.retriever_query import CallContext
from rag_r1.retriever.data.journal import fingerprint_of


@dataclass(frozen=True)
class SearchRound:
    """A search of a trajectory: the call number `call` of the turn number `turn`, both from 0."""

    played: PlayedTrajectory
    index: int
    turn: int
    call: int

    @property
    def key(self) -> tuple[str, int]:
        """The question's id and the number of the search, from 1, which together name the round."""
        return self.played.id, self.index

    @property
    def record(self) -> CallRecord:
        """The record of the search."""
        return self.played.turns[self.turn].calls[self.call]

    @property
    def query(self) -> str:
        """The policy's query."""
        return self.record.query or ""

    @property
    def history(self) -> tuple[str, ...]:
        """The queries of the turns before."""
        return tuple(query for turn in self.played.turns[: self.turn] for query in turn.queries)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that the round depends on: prompt, texts and results before it, and the query."""
        results = [[_call_values(call) for call in turn.calls] for turn in self.played.turns[: self.turn]]
        calls = [_call_values(c) for i, c in enumerate(self.played.turns[self.turn].calls) if i != self.call]
        texts = [turn.text for turn in self.played.turns[: self.turn + 1]]
        return fingerprint_of([self.played.messages, texts, results, calls, self.call, self.query])

    def call_context(self, protocol: Protocol) -> CallContext:
        """Question, history and thought, as the search had them."""
        return call_context(self.played.trajectory, protocol.thought, self.turn)

    def context(self, protocol: Protocol) -> str:
        """The policy's text and its observations up to the end of the turn that searches."""
        return "".join(
            turn.text + _observation(protocol, turn) if number < self.turn else turn.text
            for number, turn in enumerate(self.played.turns[: self.turn + 1])
        )

    def past(self, documents: Sequence[Document]) -> tuple[ReplayTurn, ...]:
        """The turns to replay up to this search, which then returns these documents."""
        calls = list(self.played.turns[self.turn].calls)
        calls[self.call] = CallRecord(self.record.tool, self.record.arguments, list(documents))
        earlier_calls = [turn.calls for turn in self.played.turns[: self.turn]]
        return tuple(
            ReplayTurn.of(ids, turn_calls)
            for ids, turn_calls in zip(self.played.token_ids, [*earlier_calls, calls], strict=False)
        )


@dataclass(frozen=True)
class PlayedTrajectory:
    """A trajectory with at least one round. `token_ids`: what the policy generated in each turn;
    `step_answers`: the answers of the steps that lead to the final one, if the question's row names them."""

    id: str
    dataset: str
    golds: tuple[str, ...]
    messages: tuple[dict[str, Any], ...]
    trajectory: Trajectory
    token_ids: tuple[tuple[int, ...], ...]
    step_answers: tuple[str, ...] = ()

    @property
    def turns(self) -> list[Turn]:
        """The turns of the trajectory."""
        return self.trajectory.turns

    @property
    def question(self) -> str:
        """The text of the question."""
        return self.trajectory.question

    @cached_property
    def rounds(self) -> list[SearchRound]:
        """The rounds of the trajectory, in order."""
        return [SearchRound(self, i, *position) for i, position in enumerate(searches_of(self.turns), 1)]


def searches_of(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """The position, (turn, call) from 0, of each search that was carried out."""
    return [
        (number, index)
        for number, turn in enumerate(turns)
        for index, call in enumerate(turn.calls)
        if call.query is not None and call.status == "ok"
    ]


def _observation(protocol: Protocol, turn: Turn) -> str:
    """The text that the policy was shown after a turn; empty for a turn without calls."""
    if not turn.calls:
        return ""
    words = [Call(call.tool, call.arguments).words for call in turn.calls]
    return protocol.observation(words, [call.documents or [] for call in turn.calls])


def _call_values(call: CallRecord) -> list[Any]:
    """A call and its results as JSON values, for the fingerprint."""
    return [call.tool, call.arguments, [[d.id, d.contents] for d in call.documents or []]]
