"""Splits a trajectory into rounds, each of which is one search with everything before it.

A round consists of a query and the turns before it, which are enough to replay the episode up to this search
and to continue from there (rag_r1/agent/replay.py). A turn may contain several searches. Each of them is a
round, and the other searches of the turn keep their results when it is replayed. The history of a round has
the queries of the earlier turns only, as in the text that the retriever is sent
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
from rag_r1.retriever.data.journal import Key, fingerprint_of


@dataclass(frozen=True)
class SearchRound:
    """A search of a trajectory, and the turns before it."""

    played: PlayedTrajectory
    #: Number of the search within the trajectory, from 1.
    index: int
    #: Number of the turn that contains the search, from 0.
    turn: int
    #: Number of the search among the calls of its turn, from 0.
    call: int

    @property
    def key(self) -> Key:
        """The question's id and the number of the search, which together identify the round."""
        return self.played.id, self.index

    @property
    def record(self) -> CallRecord:
        """The record of the search."""
        return self.played.turns[self.turn].calls[self.call]

    @property
    def query(self) -> str:
        """The query as the policy wrote it."""
        return self.record.query or ""

    @property
    def history(self) -> tuple[str, ...]:
        """The queries of all earlier turns."""
        return tuple(query for turn in self.played.turns[: self.turn] for query in turn.queries)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that the round depends on: the prompt, the text of the turns, the results of
        the earlier calls and of the other calls of its turn, and the query."""
        results = [[_call_values(call) for call in turn.calls] for turn in self.played.turns[: self.turn]]
        calls = self.played.turns[self.turn].calls
        other_calls = [_call_values(call) for index, call in enumerate(calls) if index != self.call]
        texts = [turn.text for turn in self.played.turns[: self.turn + 1]]
        return fingerprint_of([self.played.messages, texts, results, other_calls, self.call, self.query])

    def call_context(self, protocol: Protocol) -> CallContext:
        """Return the question, the earlier queries and the thought that accompanied the search."""
        return call_context(self.played.trajectory, protocol.thought, self.turn)

    def context(self, protocol: Protocol) -> str:
        """Return the policy's text and its observations up to the end of the turn with the search."""
        turns = self.played.turns
        earlier = "".join(turn.text + _observation(protocol, turn) for turn in turns[: self.turn])
        return earlier + turns[self.turn].text

    def past(self, documents: Sequence[Document]) -> tuple[ReplayTurn, ...]:
        """Return the turns that replay the episode up to this search, which then returns `documents`."""
        calls = list(self.played.turns[self.turn].calls)
        calls[self.call] = CallRecord(self.record.tool, self.record.arguments, list(documents))
        earlier_calls = [turn.calls for turn in self.played.turns[: self.turn]]
        token_ids = self.played.token_ids[: self.turn + 1]
        return tuple(map(ReplayTurn.of, token_ids, [*earlier_calls, calls]))


@dataclass(frozen=True)
class PlayedTrajectory:
    """A trajectory with at least one round."""

    #: Id of the question.
    id: str
    dataset: str
    golds: tuple[str, ...]
    #: The prompt as chat messages.
    messages: tuple[dict[str, Any], ...]
    trajectory: Trajectory
    #: The tokens that the policy generated in each turn.
    token_ids: tuple[tuple[int, ...], ...]
    #: The answers of the intermediate steps; empty if the question's row does not name them.
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
        positions = enumerate(searches_of(self.turns), 1)
        return [SearchRound(self, index, turn, call) for index, (turn, call) in positions]


def searches_of(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """Return the position of each search that was carried out, as (turn, call), both from 0."""
    return [
        (turn_index, call_index)
        for turn_index, turn in enumerate(turns)
        for call_index, call in enumerate(turn.calls)
        if call.query is not None and call.status == "ok"
    ]


def _observation(protocol: Protocol, turn: Turn) -> str:
    """Return the text that the policy was shown after a turn; empty for a turn without calls."""
    if not turn.calls:
        return ""
    queries = [Call(call.tool, call.arguments).text for call in turn.calls]
    return protocol.observation(queries, [call.documents or [] for call in turn.calls])


def _call_values(call: CallRecord) -> list[Any]:
    """Return a call and its results as JSON values, for the fingerprint."""
    return [call.tool, call.arguments, [[d.id, d.contents] for d in call.documents or []]]
