"""The actions that a generated turn is parsed into, and the results of its calls.

A turn is one action. `Search` and `Calls` call tools: `calls` lists the calls, each with a tool's name and
its arguments. `Search` is the built-in one, for the tool `search`; a turn that calls nothing else is a
`Search`, whatever its protocol's syntax.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

#: The built-in tool. Its arguments are `{"query": text}`.
SEARCH = "search"
#: What the policy reads when a search failed.
NO_ANSWER = "The search engine did not answer. Try another query, or answer with what is known."
TIMED_OUT = "The search did not answer in time. Try another query, or answer with what is known."


def well_formed(text: str) -> str:
    """Returns `text` with `?` for each lone surrogate: half of a character (JSON's `"\\ud800"`), which no
    tokenizer or file accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def has_lone_surrogate(text: str) -> bool:
    """Whether `text` holds half of a character, which `well_formed` replaces."""
    return well_formed(text) != text


@dataclass(frozen=True)
class Document:
    """One retrieved passage: the corpus's id, its text (FlashRAG: `"Title"\\ntext`) and its score.

    `verbatim`: shown without the protocol's template for documents; used for the text that other tools than a
    search engine return (`text_result`).
    """

    id: str
    contents: str
    score: float | None = None
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
        """Everything after the first line; empty when there is only one."""
        return self.contents.partition("\n")[2]


class CachedDocuments(list[Document]):
    """The documents of a call for which no request was sent, since the same call was answered before or is
    under way."""


def failure_text(tool: str, *, timed_out: bool = False) -> str:
    """Return what the policy reads when a call of a tool failed. The texts are fixed, since those of a server
    or of an error may be hostile."""
    if tool != SEARCH:
        return f"The tool {tool} did not answer. Try another call, or answer with what is known."
    return TIMED_OUT if timed_out else NO_ANSWER


@dataclass(frozen=True)
class Failure:
    """The result of a call that could not be answered.

    `reason` is shown to the policy; `detail` is for people and never shown to it; `kind` is one of the agent
    core's kinds of failure, `retriever` or `tool`.
    """

    reason: str
    kind: str = "tool"
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("reason", "detail"):
            object.__setattr__(self, name, well_formed(getattr(self, name)))


@dataclass(frozen=True)
class Refusal:
    """The result of a call that its tool does not accept: the policy's mistake, not a failure. `reason` is
    shown to the policy."""

    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", well_formed(self.reason))


@dataclass(frozen=True)
class Call:
    """One call of a tool. `arguments` are JSON values by name."""

    tool: str
    arguments: Mapping[str, Any]

    @property
    def is_search(self) -> bool:
        """Whether this is the built-in search, with a query and nothing else."""
        query = self.arguments.get("query")
        return self.tool == SEARCH and isinstance(query, str) and len(self.arguments) == 1

    @property
    def words(self) -> str:
        """The call as one text: the query of a search, else the arguments as JSON."""
        query = self.arguments.get("query")
        if isinstance(query, str) and len(self.arguments) == 1:
            return query
        return well_formed(json.dumps(dict(self.arguments), ensure_ascii=False, default=str))


@dataclass(frozen=True)
class Search:
    """One or more queries to the search engine. `dropped` counts those beyond the limit."""

    kind: ClassVar[str] = "search"
    queries: tuple[str, ...]
    dropped: int = 0

    @property
    def calls(self) -> tuple[Call, ...]:
        """The queries as calls of the tool `search`."""
        return tuple(Call(SEARCH, {"query": query}) for query in self.queries)


@dataclass(frozen=True)
class Calls:
    """Calls of tools, not all of which are searches. `dropped`: as in Search."""

    kind: ClassVar[str] = "call"
    calls: tuple[Call, ...]
    dropped: int = 0


@dataclass(frozen=True)
class Answer:
    """The final answer, stripped of surrounding white space; it may be empty."""

    kind: ClassVar[str] = "answer"
    text: str


@dataclass(frozen=True)
class Plan:
    """A plan for the next turns; it gets no observation."""

    kind: ClassVar[str] = "plan"
    text: str


@dataclass(frozen=True)
class Think:
    """A thought that is a turn of its own; it gets no observation."""

    kind: ClassVar[str] = "think"
    text: str


@dataclass(frozen=True)
class Summary:
    """A summary of the turns in `span` (`everything`, or from the `last_call`), which it replaces in the
    context."""

    kind: ClassVar[str] = "summary"
    text: str
    span: str = "everything"


@dataclass(frozen=True)
class Backtrack:
    """A reflection that takes the turns from the last one of a role in `pops` out of the context."""

    kind: ClassVar[str] = "backtrack"
    text: str
    pops: tuple[str, ...]


@dataclass(frozen=True)
class Invalid:
    """A turn without an action, or with one that cannot be carried out."""

    kind: ClassVar[str] = "invalid"
    reason: str


Action = Search | Calls | Answer | Plan | Think | Summary | Backtrack | Invalid


def calls_action(calls: Sequence[Call], limit: int) -> Search | Calls:
    """The action that makes at most `limit` of these calls: a Search if all of them are searches."""
    kept_calls = tuple(calls[:limit])
    dropped = len(calls) - len(kept_calls)
    if all(call.is_search for call in kept_calls):
        return Search(tuple(call.arguments["query"] for call in kept_calls), dropped)
    return Calls(kept_calls, dropped)


def text_result(tool: str, text: str) -> list[Document]:
    """A tool's text as the result of a call. It is shown unchanged, except that it is neutralised, like all
    data."""
    return [Document(tool, text, verbatim=True)]
