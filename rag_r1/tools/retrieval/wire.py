"""The two wire formats of the retrieval client: how requests are written and responses are read.

    retrieve   POST /retrieve {"queries", "topk", "return_scores"} -> {"result": [[{"document", "score"}]]},
               Search-R1's, RAG-R1's and our own server's
    queries    POST /queries {"queries", "k"} -> {"queries", "answers": [["id<TAB>contents"]]}, R1-Searcher's;
               it has no scores

Answers are not trusted: whatever their shape, reading them gives documents or raises ValueError. A fault in
one query's documents affects only that query: `parse_each` still gives the documents of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.protocols import Document

#: A passage is about 100 words; a document beyond this many characters is cut before it reaches a tokenizer.
MAX_DOCUMENT_CHARS = 20_000
#: Longest id of a document; web addresses are the longest.
MAX_ID_CHARS = 2_000


@dataclass(frozen=True)
class WireFormat:
    """A wire format. `path`: the server's route; `payload(queries, topk)`: the body of a request; `key`:
    where an answer has one list of documents for each query; `read`: converts one document from JSON."""

    path: str
    payload: Callable[[Sequence[str], int], dict[str, Any]]
    key: str
    read: Callable[[Any], Document]

    def parse(self, data: Any, n_queries: int, topk: int) -> list[list[Document]]:
        """The documents of all queries. Raises ValueError if the shape of anything is wrong."""
        return [[self.read(item) for item in items[:topk]] for items in _aligned(data, self.key, n_queries)]

    def parse_each(self, data: Any, n_queries: int, topk: int) -> list[list[Document] | str]:
        """For each query its documents, or what is wrong with them. Raises ValueError if there is not one
        list for each query."""
        return [self._parse_one(items[:topk]) for items in _aligned(data, self.key, n_queries)]

    def _parse_one(self, items: list[Any]) -> list[Document] | str:
        try:
            return [self.read(item) for item in items]
        except ValueError as error:
            return str(error)


def _aligned(data: Any, key: str, n_queries: int) -> list[list[Any]]:
    result = data.get(key) if isinstance(data, dict) else None
    if (
        not isinstance(result, list)
        or len(result) != n_queries
        or not all(isinstance(r, list) for r in result)
    ):
        raise ValueError(f"{key!r} must be a list with one list of documents for each of {n_queries} queries")
    return result


def _read_document(item: Any) -> Document:
    """A document with its score, or a bare one."""
    scored = isinstance(item, dict) and isinstance(item.get("document"), dict)
    document, score = (item["document"], item.get("score")) if scored else (item, None)
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(contents, str):
        raise ValueError("a document must have a string 'contents'")
    own_id = document.get("id")
    id_ = str(own_id)[:MAX_ID_CHARS] if isinstance(own_id, str | int | float) else ""
    return Document(id_, contents[:MAX_DOCUMENT_CHARS], _read_score(score))


def _read_score(score: Any) -> float | None:
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    try:
        number = float(score)
    except OverflowError:  # JSON's whole numbers have no upper limit
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a score must be a finite number")
    return number


def _read_line(item: Any) -> Document:
    if not isinstance(item, str):
        raise ValueError("an answer must be a string, id<TAB>contents")
    own_id, tab, contents = item.partition("\t")
    return Document(own_id[:MAX_ID_CHARS] if tab else "", (contents if tab else item)[:MAX_DOCUMENT_CHARS])


WIRES = {
    "retrieve": WireFormat(
        "/retrieve",
        lambda queries, topk: {"queries": list(queries), "topk": topk, "return_scores": True},
        "result",
        _read_document,
    ),
    "queries": WireFormat(
        "/queries", lambda queries, topk: {"queries": list(queries), "k": topk}, "answers", _read_line
    ),
}
