"""The record of one episode: what the policy wrote and called, what came back, and how it ended.

Rewards, dumps, evaluation and the explorer read this record and nothing else. It holds plain values only, so
that `to_dict` and JSON lose nothing. The prompt and the observations' text are deliberately not part of
`generated_text`: a prompt's example or a document can then never earn a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_r1.agent.failures import KINDS, FailureRecord
from rag_r1.protocols import SEARCH, Document, Plan, Search, Think
from rag_r1.protocols.retriever_query import CallContext

#: How an episode can end. `answered` is the only one with an answer.
#: turn_limit: no answer in the last turn; token_limit: no room for another turn; no_action: a turn without
#: an action, in a protocol that has no hint for it; tool_failure: no answer, and a search had failed;
#: engine_failure: no usable generation; bad_row: the data set's row could not be used; error: a bug.
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

_NOT_WORDS = re.compile(r"[^\w]+")
#: What the environment put into the context in a turn: texts, and pairs [call, document], the numbers of
#: documents that stand there unchanged, so that a record does not hold them twice.
Observation = list[str | list[int]]


def query_key(query: str) -> str:
    """A key that is the same for queries which differ only in letter case, punctuation or white space."""
    return " ".join(_NOT_WORDS.sub(" ", query.casefold()).split()) or query


def _copied(value: Any) -> Any:
    """A deep copy of JSON values."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


@dataclass
class CallRecord:
    """One call of a tool and its result. `arguments`: as the policy gave them; `sent`: those with which the
    tool was called, None if they are the same (a search may be sent more than the query:
    rag_r1/protocols/retriever_query.py); `documents`: as shown to the policy, None if nothing was shown;
    `seconds`: wall time, retries included (of all the turn's calls of this tool if made together); `index`:
    the one that answered and how often it was loaded (`wiki 1`), if the tool knows; `cached`: nothing was
    sent, since the same call was answered before or was under way."""

    tool: str
    arguments: dict[str, Any]
    documents: list[Document] | None = None
    seconds: float = 0.0
    status: str = "ok"  # ok | failed (no answer) | refused (no such tool, wrong arguments, or one too many)
    sent: dict[str, Any] | None = None
    index: str = ""
    cached: bool = False

    @property
    def query(self) -> str | None:
        """The query, if this is a search."""
        return str(self.arguments.get("query", "")) if self.tool == SEARCH else None

    def to_dict(self) -> dict[str, Any]:
        """Returns the call as plain JSON values, none of them shared with the record."""
        documents = None if self.documents is None else [dict(vars(document)) for document in self.documents]
        copied = {"arguments": _copied(self.arguments), "sent": _copied(self.sent)}
        return {**vars(self), **copied, "documents": documents}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CallRecord:
        """The inverse of `to_dict`. Raises TypeError on unknown keys."""
        documents = data.get("documents")
        documents = None if documents is None else [Document(**document) for document in documents]
        copied = {"arguments": _copied(data["arguments"]), "sent": _copied(data.get("sent"))}
        return cls(**{**data, **copied, "documents": documents})


@dataclass
class Turn:
    """One generation and the environment's reaction. `row`: number of the training row that contains it."""

    text: str
    action: str  # search | call | answer | plan | think | summary | backtrack | invalid
    calls: list[CallRecord] = field(default_factory=list)
    generated_tokens: int = 0
    observed_tokens: int = 0
    generate_s: float = 0.0
    tool_s: float = 0.0
    status: str = "ok"  # ok | invalid | truncated | tool_failure
    repeated_queries: int = 0  # how many of the queries had been asked before
    row: int = 0
    removed: list[int] = field(default_factory=list)  # numbers of the turns that it took out of the context
    simulated: int = 0  # observations that the policy wrote itself (SSRL); no tool was called for them
    state: float | None = None  # of the memory (memory.py) at an answer, in nats, if `max_state` is set
    observation: Observation = field(default_factory=list)  # as the policy saw it; see `observation_text`

    @classmethod
    def searched(
        cls, text: str, queries: Sequence[str], documents: Sequence[Sequence[Document]] = (), **fields: Any
    ) -> Turn:
        """A turn with a search. `documents`: those shown for each query; empty if none were shown."""
        documents = list(documents) or [None] * len(queries)
        calls = [
            CallRecord(SEARCH, {"query": query}, None if results is None else list(results))
            for query, results in zip(queries, documents, strict=True)
        ]
        return cls(text, Search.kind, calls, **fields)

    @property
    def queries(self) -> list[str]:
        """The queries of the turn's searches."""
        return [query for call in self.calls if (query := call.query) is not None]

    @property
    def documents(self) -> list[list[Document]]:
        """The documents shown to the policy, one list for each query; empty if nothing was shown."""
        searches = (call for call in self.calls if call.query is not None)
        return [call.documents for call in searches if call.documents is not None]

    @property
    def observation_text(self) -> str:
        """The text that the policy saw after the turn: documents as they were shortened, and the tags around
        them."""
        return "".join(
            piece if isinstance(piece, str) else (self.calls[piece[0]].documents or [])[piece[1]].contents
            for piece in self.observation
        )

    def observe(self, text: str) -> None:
        """Set `observation` to the text that was put into the context, with the numbers of the calls'
        documents in their place."""
        self.observation = []
        start = 0
        for number, call in enumerate(self.calls):
            for rank, document in enumerate(call.documents or ()):
                if document.contents and (position := text.find(document.contents, start)) >= 0:
                    self.observation += [text[start:position], [number, rank]]
                    start = position + len(document.contents)
        self.observation.append(text[start:])

    def to_dict(self) -> dict[str, Any]:
        """Returns the turn as plain JSON values, none of them shared with it."""
        copied = {"removed": [*self.removed], "observation": _copied(self.observation)}
        return {**vars(self), "calls": [call.to_dict() for call in self.calls], **copied}


@dataclass
class Trajectory:
    """The record of one episode. Token counts are those of all its training rows; `seconds` is the wall time
    from the prompt to the end."""

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
    turn_scores: list[float] = field(default_factory=list)  # one for each turn; they sum to the score
    failures: list[FailureRecord] = field(default_factory=list)  # those that persisted after all retries
    retries: int = 0  # repeated calls of the engine or of tools
    path: int = 0  # number of this path, if there were several
    paths: list[dict[str, Any]] = field(default_factory=list)  # records of all paths, if there were several
    prompt_sha256: str = ""  # a hash of the prompt, made by plugin/record_details.py
    rows: list[dict[str, Any]] = field(default_factory=list)  # the training rows, if they are recorded
    logprobs: dict[str, list[float]] = field(default_factory=dict)  # sum and tokens of each part (signals.py)

    @property
    def generated_text(self) -> str:
        """Everything the policy wrote, and nothing else."""
        return "".join(turn.text for turn in self.turns)

    @property
    def n_searches(self) -> int:
        """Queries of the searches that were made, refused and failed ones included."""
        return sum(len(turn.queries) for turn in self.turns)

    @property
    def n_repeated_queries(self) -> int:
        """Queries that had been asked before in this episode; they can find nothing new."""
        return sum(turn.repeated_queries for turn in self.turns)

    @property
    def n_tool_failures(self) -> int:
        """Turns in which at least one call could not be answered."""
        return sum(turn.status == "tool_failure" for turn in self.turns)

    def add_failure(self, kind: str, detail: str = "") -> None:
        """Record a failure of the current turn, the last one so far. An unknown kind counts as `tool`."""
        kind = kind if kind in KINDS else "tool"
        self.failures.append(FailureRecord(kind, max(len(self.turns) - 1, 0), detail[:200]))

    def masked(self, kinds: Collection[str]) -> bool:
        """Whether a failure of one of these kinds has happened."""
        return any(failure.kind in kinds for failure in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as plain JSON values, none of them shared with it (like `dataclasses.asdict`,
        but faster: no search for dataclasses in every value)."""
        return {
            **vars(self),
            "turns": [turn.to_dict() for turn in self.turns],
            "rewards": dict(self.rewards),
            "turn_scores": list(self.turn_scores),
            "failures": [dict(vars(failure)) for failure in self.failures],
            "paths": _copied(self.paths),
            "rows": _copied(self.rows),
            "logprobs": {part: list(values) for part, values in self.logprobs.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trajectory:
        """The inverse of `to_dict`. Raises TypeError on unknown keys."""
        turns = [
            Turn(**{**turn, "calls": [CallRecord.from_dict(call) for call in turn.get("calls", [])]})
            for turn in data.get("turns", [])
        ]
        failures = [FailureRecord(**failure) for failure in data.get("failures", [])]
        return cls(**{**data, "turns": turns, "failures": failures, "paths": _copied(data.get("paths", []))})


def call_context(record: Trajectory, thought: Callable[[str], str], turn: int = -1) -> CallContext:
    """Returns the context of the calls of a turn: the question, the queries of the earlier turns, and the
    thoughts since the last turn with calls. `thought` gives the thought in a turn's text; `turn` is the
    turn's number, -1 for the last one."""
    index = range(len(record.turns))[turn]
    previous, current = record.turns[:index], record.turns[index]
    start = next((n + 1 for n in reversed(range(index)) if previous[n].calls), 0)
    thoughts = [earlier.text for earlier in previous[start:] if earlier.action in (Think.kind, Plan.kind)]
    return CallContext(
        record.question,
        tuple(query for earlier in previous for query in earlier.queries),
        "\n".join(filter(None, map(thought, [*thoughts, current.text]))),
    )
