"""The actions into which generated turns are parsed, and the results of their calls.

Every turn is one action. `Search` and `Calls` are those that call tools, with the name of the tool and its
arguments for each call. A turn whose calls are all searches is a `Search`, whatever the syntax of the
protocol. The result of a call is a list of `Document`, a `Failure` if the tool could not answer, or a
`Refusal` if it does not accept the call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

#: Name of the built-in search tool, whose arguments are `{"query": text}`.
SEARCH = "search"
#: What the policy reads when a search failed, and when it took too long.
NO_ANSWER = "The search engine did not answer. Try another query, or answer with what is known."
TIMED_OUT = "The search did not answer in time. Try another query, or answer with what is known."

#: Which turns a summary replaces: all, or those from the last call.
SummarySpan = Literal["everything", "last_call"]


def well_formed(text: str) -> str:
    """Return a text with `?` in place of each lone surrogate: half of a character (in JSON, `"\\ud800"`) that
    no tokenizer or file accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate, which `well_formed` would replace."""
    return well_formed(text) != text


@dataclass(frozen=True)
class Document:
    """One retrieved passage, or the text of another tool."""

    #: The id of the passage in its corpus.
    id: str
    #: The text; in FlashRAG's corpora `"Title"\ntext`.
    contents: str
    #: Its score in the search; None if the search gives none.
    score: float | None = None
    #: Whether it is shown without the protocol's template for documents (see `text_result`).
    verbatim: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", well_formed(self.id))
        object.__setattr__(self, "contents", well_formed(self.contents))

    @property
    def title(self) -> str:
        """The first line, unchanged (FlashRAG corpora keep the title in double quotes)."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """Everything after the first line; empty if there is only one."""
        return self.contents.partition("\n")[2]


class CachedDocuments(list[Document]):
    """The documents of a call for which no request was sent, because an equal one had been answered or was in
    flight."""


def failure_text(tool: str, *, timed_out: bool = False) -> str:
    """Return what the policy reads when a call of a tool failed. The texts are fixed, since those of a server
    or of an error may be hostile."""
    if tool != SEARCH:
        return f"The tool {tool} did not answer. Try another call, or answer with what is known."
    return TIMED_OUT if timed_out else NO_ANSWER


@dataclass(frozen=True)
class Failure:
    """The result of a call that could not be answered."""

    #: What the policy is shown.
    reason: str
    #: Which part failed, by one of the kinds in rag_r1/agent/failures.py, mostly `retriever` or `tool`.
    kind: str = "tool"
    #: A description for people; the policy never sees it.
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("reason", "detail"):
            object.__setattr__(self, name, well_formed(getattr(self, name)))


@dataclass(frozen=True)
class Refusal:
    """The result of a call that its tool does not accept. This is a mistake of the policy, not a failure;
    `reason` is what the policy is shown."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", well_formed(self.reason))


@dataclass(frozen=True)
class Call:
    """One call of a tool. `arguments` maps their names to JSON values."""

    tool: str
    arguments: Mapping[str, Any]

    @property
    def is_search(self) -> bool:
        """Whether this is a call of the built-in search with a query and no other argument."""
        query = self.arguments.get("query")
        return self.tool == SEARCH and isinstance(query, str) and len(self.arguments) == 1

    @property
    def text(self) -> str:
        """What the call asks for, as one text: the query if that is the only argument, else all arguments as
        JSON."""
        query = self.arguments.get("query")
        if isinstance(query, str) and len(self.arguments) == 1:
            return query
        return well_formed(json.dumps(dict(self.arguments), ensure_ascii=False, default=str))


@dataclass(frozen=True)
class Search:
    """One or more queries to the search engine."""

    kind: ClassVar[str] = "search"
    queries: tuple[str, ...]
    #: Number of queries that were left out, since they exceeded the protocol's limit.
    dropped: int = 0

    @property
    def calls(self) -> tuple[Call, ...]:
        """The queries as calls of the tool `search`."""
        return tuple(Call(SEARCH, {"query": query}) for query in self.queries)


@dataclass(frozen=True)
class Calls:
    """Calls of tools, at least one of which is not a search; `dropped` is as in `Search`."""

    kind: ClassVar[str] = "call"
    calls: tuple[Call, ...]
    dropped: int = 0


@dataclass(frozen=True)
class Answer:
    """The final answer, without surrounding white space; it may be empty."""

    kind: ClassVar[str] = "answer"
    text: str


@dataclass(frozen=True)
class Plan:
    """A plan for the next turns, which is followed by no observation."""

    kind: ClassVar[str] = "plan"
    text: str


@dataclass(frozen=True)
class Think:
    """A turn that is only a thought, which is followed by no observation."""

    kind: ClassVar[str] = "think"
    text: str


@dataclass(frozen=True)
class Summary:
    """A summary that replaces earlier turns in the context."""

    kind: ClassVar[str] = "summary"
    text: str
    #: Which turns it replaces: `everything`, or those from the `last_call`.
    span: SummarySpan = "everything"


@dataclass(frozen=True)
class Backtrack:
    """A reflection that removes earlier turns from the context."""

    kind: ClassVar[str] = "backtrack"
    text: str
    #: Turns are removed from the last one whose role is among these.
    pops: tuple[str, ...]


@dataclass(frozen=True)
class Invalid:
    """A turn without an action that can be carried out, for the given reason."""

    kind: ClassVar[str] = "invalid"
    reason: str


Action = Search | Calls | Answer | Plan | Think | Summary | Backtrack | Invalid


def calls_action(calls: Sequence[Call], limit: int) -> Search | Calls:
    """Return the action that makes the first `limit` of these calls: a Search if all of them are searches."""
    kept_calls = tuple(calls[:limit])
    dropped = len(calls) - len(kept_calls)
    if all(call.is_search for call in kept_calls):
        return Search(tuple(call.arguments["query"] for call in kept_calls), dropped)
    return Calls(kept_calls, dropped)


def text_result(tool: str, text: str) -> list[Document]:
    """Return the text of a tool as the result of a call. It is neutralised like all data, and otherwise shown
    unchanged."""
    return [Document(tool, text, verbatim=True)]
