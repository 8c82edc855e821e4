"""Reads gold passages by their ids from a retrieval server, for probes without a corpus.

The project's retrieval server returns the texts of passages by their ids at `POST /documents`, for an address
like `http://host:8000/indexes/wiki` with the name of the index in the body. Another server may lack this
route; its probes are then played without the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from rag_r1.data.evidence import GoldEvidence
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.probes.passages import Passages
from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.client import token_header
from rag_r1.tools.retrieval.query_format import ready_address

#: Documents per request, the limit of the project's server (MAX_IDS in retrieval_server/server/wire.py).
_DOCUMENTS_PER_REQUEST = 64
#: Seconds to wait for each answer, longer than for a search, since it may have 64 whole passages.
_TIMEOUT_S = 60.0
#: Statuses with which a server says that it lacks the route.
_NO_ROUTE = (404, 405, 501)


def served_passages(base: str, evidence: Iterable[GoldEvidence]) -> Passages:
    """Return the gold passages that the questions name by id, from the retrieval server at `base`; none if
    it does not serve documents by id. Raises RunError if no server answers there, if it answers with an
    error, such as that for an unknown index, or if its answer has another form."""
    ids = sorted({passage_id for gold in evidence for passage_id in gold.ids})
    passages = Passages()
    ready, index = ready_address(base)
    address = ready.removesuffix("/ready") + "/documents"
    index_field = {"index": index} if index else {}
    try:
        with bounded_http_client(_TIMEOUT_S, token_header()) as client:
            for start in range(0, len(ids), _DOCUMENTS_PER_REQUEST):
                batch = ids[start : start + _DOCUMENTS_PER_REQUEST]
                response = client.post(address, json={"ids": batch, **index_field})
                if _lacks_route(response):
                    return Passages()
                if response.status_code != 200:
                    asked_index = f" for the index {index}" if index else ""
                    raise ValueError(f"HTTP {response.status_code}{asked_index}")
                passages.by_id.update(_documents_of(response.json(), batch))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"the retrieval server at {base} gives no documents ({type(error).__name__}: {error}): start it, "
            "or see its log and $RETRIEVAL_TOKEN, or give the corpus with --corpus"
        ) from error
    return passages


def _lacks_route(response: httpx.Response) -> bool:
    """Return whether a server says that it lacks the route. The project's server also answers 404 if it lacks
    the index, but with the error `unknown_index`."""
    if response.status_code not in _NO_ROUTE:
        return False
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return True
    return not isinstance(body, dict) or body.get("error") != "unknown_index"


def _documents_of(data: Any, ids: Sequence[str]) -> dict[str, Document]:
    """Return the documents in a server's answer by id; ids without a text are left out. Raises ValueError
    for an answer of another shape."""
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list) or len(result) != len(ids):
        raise ValueError("no `result` with a document for each id")
    texts = [row.get("contents") if isinstance(row, dict) else None for row in result]
    return {
        id_: Document(id_, text)
        for id_, text in zip(ids, texts, strict=True)
        if isinstance(text, str) and text.strip()
    }
