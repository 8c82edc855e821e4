"""What a turn can be: the typed results of parsing one generated turn, and the documents of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


def well_formed(text: str) -> str:
    """`text` with `?` for lone surrogates (JSON's `"\\ud800"`), which no tokenizer or file takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Document:
    """One retrieved passage: the corpus's id, its text (FlashRAG: `"Title"\\ntext`) and its score."""

    id: str
    contents: str
    score: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", well_formed(self.id))
        object.__setattr__(self, "contents", well_formed(self.contents))

    @property
    def title(self) -> str:
        """The first line, as it stands (FlashRAG corpora keep the title in double quotes)."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """Everything after the first line; empty when there is only one."""
        return self.contents.partition("\n")[2]


@dataclass(frozen=True)
class Failure:
    """Stands in a search's results for a query that could not be answered.

    `reason` is shown to the model; `detail` is for people and never is; `kind` is one of the agent core's
    kinds of failure, `retriever` or `tool`.
    """

    reason: str
    kind: str = "tool"
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("reason", "detail"):
            object.__setattr__(self, name, well_formed(getattr(self, name)))


@dataclass(frozen=True)
class Search:
    """Ask the search engine: one query or more, all different. `dropped` counts those beyond the limit."""

    kind: ClassVar[str] = "search"
    queries: tuple[str, ...]
    dropped: int = 0


@dataclass(frozen=True)
class Answer:
    """The final answer, stripped of surrounding white space; it may be empty."""

    kind: ClassVar[str] = "answer"
    text: str


@dataclass(frozen=True)
class Invalid:
    """A turn without an action, or with one that cannot be carried out."""

    kind: ClassVar[str] = "invalid"
    reason: str


Action = Search | Answer | Invalid
