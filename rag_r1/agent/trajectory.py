"""The record of one episode: what the policy wrote and called, what came back, and how it ended.

The episode fills a `Trajectory` with one `Turn` for each generation and one `CallRecord` for each call of a
tool. Rewards, dumps, evaluation and the explorer work from this record alone. It holds plain values only, so
`to_dict` and JSON lose nothing.

`generated_text` deliberately contains neither the prompt nor the observations: an example in the prompt or a
document can therefore never earn a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rag_r1.agent.failures import KINDS, FailureRecord
from rag_r1.protocols import SEARCH, Document, Plan, Search, Think
from rag_r1.protocols.retriever_query import CallContext

#: How an episode can end; only `answered` comes with an answer.
#:
#:     turn_limit       the last turn had no answer
#:     token_limit      there was no room for another turn
#:     no_action        a turn had no action, and the protocol has no hint for that
#:     tool_failure     there was no answer, and a call had failed
#:     engine_failure   the engine gave no usable generation
#:     bad_row          the row of the data set could not be used
#:     error            a bug
Status = Literal[
    "answered", "turn_limit", "token_limit", "no_action", "tool_failure", "engine_failure", "bad_row", "error"
]
STATUSES: tuple[Status, ...] = get_args(Status)
#: The statuses of episodes that failed, through no fault of the policy.
FAILURE_STATUSES: tuple[Status, ...] = ("tool_failure", "engine_failure", "bad_row", "error")
#: How a call can end. `failed`: the tool did not answer; `refused`: there is no such tool, the arguments are
#: wrong, or the tool was called too often.
CallStatus = Literal["ok", "failed", "refused"]
#: `invalid`: the turn had no action; `truncated`: it was cut off by its token limit; `tool_failure`: at least
#: one of its calls failed.
TurnStatus = Literal["ok", "invalid", "truncated", "tool_failure"]

_NOT_WORDS = re.compile(r"[^\w]+")
#: The text that the environment added in a turn, in pieces: a string stands for itself, and a pair of indices
#: [call, document] for the contents of that document, so that a record does not hold them twice.
Observation = list[str | list[int]]


def query_key(query: str) -> str:
    """Return a key that is equal for queries which differ only in letter case, punctuation or white space."""
    return " ".join(_NOT_WORDS.sub(" ", query.casefold()).split()) or query


def _copied(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


@dataclass
class CallRecord:
    """One call of a tool and its result."""

    #: Name of the tool, as it is registered.
    tool: str
    #: The arguments that the policy wrote.
    arguments: dict[str, Any]
    #: The documents as they were shown to the policy; None if nothing was shown.
    documents: list[Document] | None = None
    #: Wall time in seconds, including retries. Calls that a tool answers together share one time.
    seconds: float = 0.0
    status: CallStatus = "ok"
    #: The arguments that the tool sent instead, if they differ from those of the policy: a retriever may need
    #: more than the query (rag_r1/protocols/retriever_query.py).
    sent: dict[str, Any] | None = None
    #: Name and version of the index that answered, e.g. `wiki 1`; empty if the tool does not report it.
    index: str = ""
    #: Whether no request was sent because an equal one had been answered or was in flight.
    cached: bool = False

    @property
    def query(self) -> str | None:
        """The query of a search; None for a call of another tool."""
        return str(self.arguments.get("query", "")) if self.tool == SEARCH else None

    def to_dict(self) -> dict[str, Any]:
        """Return the call as plain JSON values, none of them shared with the record."""
        documents = None if self.documents is None else [dict(vars(document)) for document in self.documents]
        copied = {"arguments": _copied(self.arguments), "sent": _copied(self.sent)}
        return {**vars(self), **copied, "documents": documents}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CallRecord:
        """Read a call from what `to_dict` returns. Raises TypeError for unknown and for missing keys."""
        documents = data.get("documents")
        documents = None if documents is None else [Document(**document) for document in documents]
        copied = {key: _copied(data[key]) for key in ("arguments", "sent") if key in data}
        return cls(**{**data, **copied, "documents": documents})


@dataclass
class Turn:
    """One generation of the policy and the reaction of the environment."""

    #: What the policy wrote.
    text: str
    #: The `kind` of the turn's action (rag_r1/protocols/actions.py).
    action: str
    calls: list[CallRecord] = field(default_factory=list)
    generated_tokens: int = 0
    observed_tokens: int = 0
    #: Wall time of the generation and of the calls, in seconds.
    generate_s: float = 0.0
    tool_s: float = 0.0
    status: TurnStatus = "ok"
    #: Number of queries that had already been sent in this episode.
    repeated_queries: int = 0
    #: Index of the training row that contains the turn.
    row: int = 0
    #: Indices of the turns that this turn removed from the context.
    removed: list[int] = field(default_factory=list)
    #: Number of observations that the policy wrote itself, without a call of a tool (SSRL).
    simulated: int = 0
    #: State of the memory (memory.py) at an answer, in nats; None unless `max_state` is set.
    state: float | None = None
    #: What the environment added after the turn; `observation_text` has it as one text.
    observation: Observation = field(default_factory=list)

    @classmethod
    def searched(
        cls, text: str, queries: Sequence[str], documents: Sequence[Sequence[Document]] = (), **fields: Any
    ) -> Turn:
        """Return a turn with a search. `documents` has those shown for each query, or is empty if none were
        shown; `fields` are further fields of the turn."""
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
        """The text that the policy saw after the turn: the documents as they were shortened, with the tags
        around them."""
        return "".join(
            piece if isinstance(piece, str) else (self.calls[piece[0]].documents or [])[piece[1]].contents
            for piece in self.observation
        )

    def observe(self, text: str) -> None:
        """Set `observation` to a text that was added to the context, with references in place of the
        documents of the calls."""
        self.observation = []
        start = 0
        for index, call in enumerate(self.calls):
            for rank, document in enumerate(call.documents or ()):
                if document.contents and (position := text.find(document.contents, start)) >= 0:
                    self.observation += [text[start:position], [index, rank]]
                    start = position + len(document.contents)
        self.observation.append(text[start:])

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as plain JSON values, none of them shared with it."""
        copied = {"removed": [*self.removed], "observation": _copied(self.observation)}
        return {**vars(self), "calls": [call.to_dict() for call in self.calls], **copied}


@dataclass
class Trajectory:
    """The record of one episode."""

    id: str
    question: str
    #: Name of the protocol.
    protocol: str
    turns: list[Turn] = field(default_factory=list)
    #: The final answer; None if the episode ended without one.
    answer: str | None = None
    status: Status = "turn_limit"
    prompt_tokens: int = 0
    #: Tokens of all training rows together.
    generated_tokens: int = 0
    observed_tokens: int = 0
    #: Wall time from the prompt to the end, in seconds.
    seconds: float = 0.0
    #: The score and the value of each reward term, by name; None for a term that could not judge.
    rewards: dict[str, float | None] = field(default_factory=dict)
    #: One number for each turn; they sum to the score.
    turn_scores: list[float] = field(default_factory=list)
    #: Failures that persisted after all retries.
    failures: list[FailureRecord] = field(default_factory=list)
    #: Number of repeated calls of the engine and of tools.
    retries: int = 0
    #: With self-consistency: the index of this path, and the records of all paths.
    path: int = 0
    paths: list[dict[str, Any]] = field(default_factory=list)
    #: A hash of the prompt (plugin/record_details.py).
    prompt_sha256: str = ""
    #: The training rows, if they are recorded.
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: Sum of the log-probs (nats) and number of tokens of each part of the turns (tokens/signals.py).
    logprobs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def generated_text(self) -> str:
        """Everything that the policy wrote, turn by turn, without prompt and observations."""
        return "".join(turn.text for turn in self.turns)

    @property
    def n_searches(self) -> int:
        """Number of queries in all turns, including refused and failed ones."""
        return sum(len(turn.queries) for turn in self.turns)

    @property
    def n_repeated_queries(self) -> int:
        """Number of queries that repeat an earlier one of this episode and so can find nothing new."""
        return sum(turn.repeated_queries for turn in self.turns)

    @property
    def n_tool_failures(self) -> int:
        """Number of turns in which at least one call failed."""
        return sum(turn.status == "tool_failure" for turn in self.turns)

    def add_failure(self, kind: str, detail: str = "") -> None:
        """Record a failure in the latest turn. An unknown kind counts as `tool`, and `detail` is cut to 200
        characters."""
        kind = kind if kind in KINDS else "tool"
        self.failures.append(FailureRecord(kind, max(len(self.turns) - 1, 0), detail[:200]))

    def masked(self, kinds: Collection[str]) -> bool:
        """Whether the episode has a failure of one of these kinds."""
        return any(failure.kind in kinds for failure in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON values, none of them shared with it. This does the same as
        `dataclasses.asdict`, but faster, since it does not look for dataclasses in every value."""
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
        """Read a record from what `to_dict` returns. Raises TypeError for unknown and for missing keys."""
        turns = [
            Turn(**{**turn, "calls": [CallRecord.from_dict(call) for call in turn.get("calls", [])]})
            for turn in data.get("turns", [])
        ]
        failures = [FailureRecord(**failure) for failure in data.get("failures", [])]
        return cls(**{**data, "turns": turns, "failures": failures, "paths": _copied(data.get("paths", []))})


def call_context(record: Trajectory, thought: Callable[[str], str], turn: int = -1) -> CallContext:
    """Return the context of the calls of a turn: the question, the queries of the earlier turns, and the
    thoughts since the last turn with calls.

    `thought` extracts the thought from the text of a turn; `turn` is the index of the turn, -1 for the last.
    """
    index = range(len(record.turns))[turn]
    previous, current = record.turns[:index], record.turns[index]
    start = next((n + 1 for n in reversed(range(index)) if previous[n].calls), 0)
    thoughts = [earlier.text for earlier in previous[start:] if earlier.action in (Think.kind, Plan.kind)]
    return CallContext(
        record.question,
        tuple(query for earlier in previous for query in earlier.queries),
        "\n".join(filter(None, map(thought, [*thoughts, current.text]))),
    )
