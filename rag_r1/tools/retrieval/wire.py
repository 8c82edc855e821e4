"""The two wire formats of the retrieval client: how requests are written and responses are read.

    retrieve   the format of Search-R1's, RAG-R1's and this project's server:
               POST /retrieve {"queries", "topk", "return_scores"} -> {"result": [[{"document", "score"}]]}
    queries    the format of R1-Searcher's server, which has no scores:
               POST /queries {"queries", "k"} -> {"queries", "answers": [["id<TAB>contents"]]}

Answers are not trusted: whatever their shape, reading them returns documents or raises ValueError. In a
search, a fault in the documents of one query affects only that query (`parse_each`). The test search of a
preflight accepts no fault at all (`parse_strict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.options.server_address import OTHER_JSON
from rag_r1.protocols import Document

#: Longest document, in characters; a longer one is cut before it reaches a tokenizer. A passage has about 100
#: words.
MAX_DOCUMENT_CHARS = 20_000
#: Longest id of a document, in characters; the longest are web addresses.
MAX_ID_CHARS = 2_000


@dataclass(frozen=True)
class WireFormat:
    """How requests of one format are written and its responses are read."""

    #: The server's route.
    path: str
    #: Makes the body of a request from the queries and the number of documents for each.
    payload: Callable[[Sequence[str], int], dict[str, Any]]
    #: The key of an answer with a list of documents for each query.
    results_key: str
    #: Converts one document from JSON. Raises ValueError.
    read_document: Callable[[Any], Document]

    def parse_strict(self, data: Any, n_queries: int, topk: int) -> list[list[Document]]:
        """Return the first `topk` documents of each query. Raises ValueError if anything has a wrong
        shape."""
        results = _results(data, self.results_key, n_queries)
        return [[self.read_document(item) for item in items[:topk]] for items in results]

    def parse_each(self, data: Any, n_queries: int, topk: int) -> list[list[Document] | str]:
        """Return the first `topk` documents of each query, or what is wrong with them. Raises ValueError
        unless there is one list for each query."""
        results = _results(data, self.results_key, n_queries)
        return [self._documents_or_fault(items[:topk]) for items in results]

    def _documents_or_fault(self, items: list[Any]) -> list[Document] | str:
        try:
            return [self.read_document(item) for item in items]
        except ValueError as error:
            return str(error)


def _results(data: Any, key: str, n_queries: int) -> list[list[Any]]:
    """Return the list of documents of each query. Raises ValueError unless there is one for each."""
    result = data.get(key) if isinstance(data, dict) else None
    is_complete = isinstance(result, list) and len(result) == n_queries
    if not is_complete or not all(isinstance(items, list) for items in result):
        requirement = f"{key!r} must be a list with one list of documents for each of {n_queries} queries"
        raise ValueError(f"{OTHER_JSON}: {requirement}")
    return result


def _read_document(item: Any) -> Document:
    """Read a document of the format `retrieve`: the document itself, or {"document", "score"}. Raises
    ValueError."""
    is_wrapped = isinstance(item, dict) and isinstance(item.get("document"), dict)
    document, score = (item["document"], item.get("score")) if is_wrapped else (item, None)
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(contents, str):
        raise ValueError(f"{OTHER_JSON}: a document must have a string 'contents'")
    value = document.get("id")
    has_id = isinstance(value, str | int | float) and not isinstance(value, bool)
    document_id = str(value)[:MAX_ID_CHARS] if has_id else ""
    return Document(document_id, contents[:MAX_DOCUMENT_CHARS], _read_score(score))


def _read_score(score: Any) -> float | None:
    """Read the score of a document; None if it is not a number. Raises ValueError if it is not finite."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    try:
        number = float(score)
    except OverflowError:  # whole numbers in JSON have no limit; infinity is refused below
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a score must be a finite number")
    return number


def _read_line(item: Any) -> Document:
    """Read a document of the format `queries`: one text, with the id before the first tab. Raises
    ValueError."""
    if not isinstance(item, str):
        raise ValueError(f"{OTHER_JSON}: an answer must be a string, id<TAB>contents")
    document_id, tab, contents = item.partition("\t")
    if not tab:
        document_id, contents = "", item
    return Document(document_id[:MAX_ID_CHARS], contents[:MAX_DOCUMENT_CHARS])


def _retrieve_payload(queries: Sequence[str], topk: int) -> dict[str, Any]:
    return {"queries": list(queries), "topk": topk, "return_scores": True}


def _queries_payload(queries: Sequence[str], topk: int) -> dict[str, Any]:
    return {"queries": list(queries), "k": topk}


#: The wire formats by their names in the option `wire`.
WIRES = {
    "retrieve": WireFormat("/retrieve", _retrieve_payload, "result", _read_document),
    "queries": WireFormat("/queries", _queries_payload, "answers", _read_line),
}
