"""The two wires that the retrieval client speaks: what a request holds, and how an answer is read.

    retrieve   POST /retrieve {"queries", "topk", "return_scores"} -> {"result": [[{"document", "score"}]]},
               Search-R1's, RAG-R1's and our own server's
    queries    POST /queries {"queries", "k"} -> {"queries", "answers": [["id<TAB>contents"]]}, R1-Searcher's;
               it has no scores

An answer is hostile until it is read: whatever its shape, reading gives documents or raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.protocols import Document

#: A passage is about 100 words; a document beyond this many characters is cut before it reaches a tokenizer.
MAX_DOCUMENT_CHARS = 20_000


@dataclass(frozen=True)
class Wire:
    """`path` behind the address; `payload(queries, topk)`; `parse(answer, number of queries, topk)`."""

    path: str
    payload: Callable[[Sequence[str], int], dict[str, Any]]
    parse: Callable[[Any, int, int], list[list[Document]]]


def parse_results(data: Any, n_queries: int, topk: int) -> list[list[Document]]:
    """The documents in a `/retrieve` answer, with scores or bare. Raises ValueError if its shape is wrong."""
    return [[_parse_document(item) for item in items[:topk]] for items in _aligned(data, "result", n_queries)]


def parse_answers(data: Any, n_queries: int, topk: int) -> list[list[Document]]:
    """The documents in a `/queries` answer. Raises ValueError if its shape is wrong."""
    return [[_parse_line(item) for item in items[:topk]] for items in _aligned(data, "answers", n_queries)]


def _aligned(data: Any, key: str, n_queries: int) -> list[list[Any]]:
    result = data.get(key) if isinstance(data, dict) else None
    if (
        not isinstance(result, list)
        or len(result) != n_queries
        or not all(isinstance(r, list) for r in result)
    ):
        raise ValueError(f"{key!r} must be a list with one list of documents for each of {n_queries} queries")
    return result


def _parse_document(item: Any) -> Document:
    scored = isinstance(item, dict) and isinstance(item.get("document"), dict)
    document, score = (item["document"], item.get("score")) if scored else (item, None)
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(contents, str):
        raise ValueError("a document must have a string 'contents'")
    number = isinstance(score, int | float) and not isinstance(score, bool)
    return Document(
        str(document.get("id", "")), contents[:MAX_DOCUMENT_CHARS], float(score) if number else None
    )


def _parse_line(item: Any) -> Document:
    if not isinstance(item, str):
        raise ValueError("an answer must be a string, id<TAB>contents")
    own_id, tab, contents = item.partition("\t")
    return Document(own_id if tab else "", (contents if tab else item)[:MAX_DOCUMENT_CHARS])


WIRES = {
    "retrieve": Wire(
        "/retrieve",
        lambda queries, topk: {"queries": list(queries), "topk": topk, "return_scores": True},
        parse_results,
    ),
    "queries": Wire("/queries", lambda queries, topk: {"queries": list(queries), "k": topk}, parse_answers),
}
