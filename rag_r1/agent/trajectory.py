"""The record of one episode: what the policy wrote, what it asked, what came back, and how it ended.

Rewards, dumps, evaluation and the explorer read this record and nothing else. It holds plain values only, so
that `to_dict` and JSON lose nothing. The prompt and the observations' text are deliberately not part of
`generated_text`: a prompt's example or a document can then never earn a reward.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.failures import KINDS, FailureNote
from rag_r1.protocols import Document

#: How an episode can end. `answered` is the only one with an answer.
#: turn_limit: no answer in the last turn; token_limit: no room for another turn; no_action: a turn without
#: an action, in a protocol that has no hint for it; tool_failure: no answer, and a search had failed;
#: engine_failure: there was no generation, or none that can be used; bad_row: the data set's row could not be
#: used; error: a fault in code.
STATUSES = (
    "answered",
    "turn_limit",
    "token_limit",
    "no_action",
    "tool_failure",
    "engine_failure",
    "bad_row",
    "error",
)


_NO_WORD = re.compile(r"[^\w]+")


def query_key(query: str) -> str:
    """What two queries have in common that ask for the same: words in order, not case and punctuation."""
    return " ".join(_NO_WORD.sub(" ", query.casefold()).split()) or query


@dataclass
class Turn:
    """One generation and what the environment answered to it."""

    text: str
    action: str  # search | answer | invalid
    queries: list[str] = field(default_factory=list)
    documents: list[list[Document]] = field(default_factory=list)  # as shown to the policy, one list a query
    generated_tokens: int = 0
    observed_tokens: int = 0
    generate_s: float = 0.0
    tool_s: float = 0.0
    status: str = "ok"  # ok | invalid | truncated | tool_failure
    repeated_queries: int = 0  # how many of the queries had been asked before

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, none of them shared with the turn."""
        documents = [[dict(vars(document)) for document in found] for found in self.documents]
        return {**vars(self), "queries": list(self.queries), "documents": documents}


@dataclass
class Trajectory:
    """One episode. Token counts are of this episode's row; `seconds` is wall time from prompt to end."""

    id: str
    question: str
    protocol: str
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    status: str = "turn_limit"
    prompt_tokens: int = 0
    generated_tokens: int = 0
    observed_tokens: int = 0
    seconds: float = 0.0
    rewards: dict[str, float | None] = field(default_factory=dict)
    turn_scores: list[float] = field(default_factory=list)  # one a turn; they sum to the score
    failures: list[FailureNote] = field(default_factory=list)  # those that no retry mended
    retries: int = 0  # calls of the engine or of the searcher that were made again

    @property
    def generated_text(self) -> str:
        """Everything the policy wrote, and nothing else."""
        return "".join(turn.text for turn in self.turns)

    @property
    def n_searches(self) -> int:
        """Queries sent to the search engine."""
        return sum(len(turn.queries) for turn in self.turns)

    @property
    def n_repeated_queries(self) -> int:
        """Queries that had been asked before in this episode; they can find nothing new."""
        return sum(turn.repeated_queries for turn in self.turns)

    @property
    def n_tool_failures(self) -> int:
        """Turns in which at least one query could not be answered."""
        return sum(turn.status == "tool_failure" for turn in self.turns)

    def failed(self, kind: str, detail: str = "") -> None:
        """Record a failure of the turn that is being played (or of the last one). An unknown kind is a
        tool's."""
        kind = kind if kind in KINDS else "tool"
        self.failures.append(FailureNote(kind, max(len(self.turns) - 1, 0), detail[:200]))

    def masked(self, kinds: Collection[str]) -> bool:
        """Has a failure of one of these kinds happened?"""
        return any(failure.kind in kinds for failure in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, none of them shared with the record (`dataclasses.asdict`, without its search for
        dataclasses in every value)."""
        turns = [turn.to_dict() for turn in self.turns]
        failures = [dict(vars(failure)) for failure in self.failures]
        lists = {"turns": turns, "turn_scores": list(self.turn_scores), "failures": failures}
        return {**vars(self), **lists, "rewards": dict(self.rewards)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trajectory:
        """The inverse of `to_dict`. Raises TypeError on unknown keys."""
        turns = [Turn(**turn) for turn in data.get("turns", [])]
        for turn in turns:
            turn.documents = [[Document(**document) for document in found] for found in turn.documents]
        failures = [FailureNote(**failure) for failure in data.get("failures", [])]
        return cls(**{**data, "turns": turns, "failures": failures})
