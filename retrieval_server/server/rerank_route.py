"""The route `POST /rerank`: reranks the client's documents with the server's cross-encoder.

There are two formats. Search-R1's takes a list of queries with a list of documents for each, as `/retrieve`
returns them, and answers in the format of `/retrieve`. The other takes one `query` and answers like the
reranking services of Cohere and Jina, with positions in the request and relevance scores.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from retrieval_server.search.reranker import Reranker
from retrieval_server.server.services import Services
from retrieval_server.server.wire import Query, TopK, example

#: The text of a document. Like a query, it must be encodable for the model.
DocumentText = Query
#: Pairs of a query and a document in one request.
MAX_PAIRS = 2048
#: Requests that are accepted and not yet answered; the model scores them one after the other.
MAX_WAITING = 16


class RerankDocument(BaseModel):
    """A document as `/retrieve` returns it, or with its text under `text`. Other keys are sent back."""

    model_config = ConfigDict(extra="allow")

    contents: Annotated[DocumentText, Field(validation_alias=AliasChoices("contents", "text"))]

    @model_validator(mode="after")
    def _can_be_sent_back(self) -> RerankDocument:
        JSONResponse(self.model_extra)  # raises ValueError for NaN and for half a surrogate pair
        return self


class ScoredRerankDocument(BaseModel):
    """A document with the score of the search that found it. The score is ignored."""

    document: RerankDocument


#: A document of a request: its text alone, or an object.
RerankInput = DocumentText | ScoredRerankDocument | RerankDocument


class RerankRequest(BaseModel):
    """Body of `POST /rerank`."""

    model_config = example(
        {
            "query": "Who wrote the novel The Trial?",
            "documents": ["Ulm lies on the Danube.", "Franz Kafka wrote The Trial."],
            "topk": 1,
        }
    )

    query: Query | None = Field(None, description="One query; `documents` is then a list of documents.")
    queries: list[Query] | None = Field(None, description="Queries; `documents` is then a list for each.")
    documents: list[RerankInput] | list[list[RerankInput]]
    topk: TopK | None = Field(
        None,
        validation_alias=AliasChoices("topk", "rerank_topk", "top_n"),
        description="Documents for each query (also `rerank_topk`, `top_n`); all of them if absent.",
    )
    return_scores: StrictBool = Field(False, description="Whether documents come with scores (`queries`).")

    @model_validator(mode="after")
    def _shapes_fit(self) -> RerankRequest:
        if (self.query is None) == (self.queries is None):
            raise PydanticCustomError("queries", "give either query (one string) or queries (a list)")
        if any(isinstance(item, list) != (self.queries is not None) for item in self.documents):
            raise PydanticCustomError("documents", "a list of documents for query, list of lists for queries")
        if self.queries is not None and len(self.queries) != len(self.documents):
            raise PydanticCustomError("documents", "there must be one list of documents for each query")
        return self

    def documents_by_query(self) -> list[tuple[str, list[RerankInput]]]:
        """Return each query with its documents."""
        if self.queries is None:
            return [(self.query or "", self.documents)]  # type: ignore[list-item]
        return list(zip(self.queries, self.documents, strict=True))  # type: ignore[arg-type]


class RankedDocument(BaseModel):
    """The score of a document, which is named by its position in the request."""

    index: int
    relevance_score: float


class RerankResponse(BaseModel):
    """The documents, best first: `result[i]` belongs to `queries[i]`, and `results` to a single `query`."""

    result: list[list[Any]] | None = None
    results: list[RankedDocument] | None = None


def add_rerank_route(router: APIRouter, services: Services, reranker: Reranker, errors: dict) -> None:
    """Add `/rerank` to the router. `errors` documents the error responses on the API page."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="rerank")
    waiting = 0

    @router.post(
        "/rerank",
        summary="The client's documents, ordered by a cross-encoder (Search-R1; Cohere, Jina)",
        response_model=RerankResponse,
        response_model_exclude_none=True,
        responses=errors,
    )
    async def rerank(body: RerankRequest, request: Request) -> JSONResponse:
        nonlocal waiting
        services.indexes.require()  # no index is used, but the server is ready only when its default one is
        groups = body.documents_by_query()
        _refuse_too_large(groups, body, services)
        if waiting >= MAX_WAITING:
            reason = f"{waiting} rerank requests under way, at most {MAX_WAITING}"
            raise services.request_errors.counted(503, "overloaded", reason, retry_after=1)
        waiting += 1
        try:
            pairs = [(query, _text(document)) for query, documents in groups for document in documents]
            work = asyncio.get_running_loop().run_in_executor(thread, reranker.score, pairs)
            # If the client disconnects, waiting work is cancelled; scoring that has begun continues.
            scores = iter(await services.search.until_disconnected(request, work))
        finally:
            waiting -= 1
        result = [_rank([(item, next(scores)) for item in documents], body) for _, documents in groups]
        return JSONResponse({"result": result} if body.queries is not None else {"results": result[0]})


def _refuse_too_large(groups: list[tuple[str, list]], body: RerankRequest, services: Services) -> None:
    """Raise RequestError (413) if `body` exceeds the limits. `groups` are its documents by query."""
    counted = services.request_errors.counted
    max_chars = services.search.limits.max_query_chars
    pairs = sum(len(documents) for _, documents in groups)
    if pairs > MAX_PAIRS:
        reason = f"{pairs} documents; at most {MAX_PAIRS} in one request: send less at a time"
        raise counted(413, "too_large", reason)
    for i, (query, _) in enumerate(groups):
        if len(query) > max_chars:
            name = "query" if body.queries is None else f"queries[{i}]"
            reason = f"{name} has {len(query)} characters; at most {max_chars}: shorten it"
            raise counted(413, "too_large", reason)


def _without_score(document: RerankInput) -> str | RerankDocument:
    """Return the document without the score of the search that found it."""
    return document.document if isinstance(document, ScoredRerankDocument) else document


def _text(document: RerankInput) -> str:
    """Return the text that the cross-encoder reads."""
    document = _without_score(document)
    return document if isinstance(document, str) else document.contents


def _as_sent(document: RerankInput) -> Any:
    """Return the document as the client sent it, without a score, and with its text under `contents`."""
    document = _without_score(document)
    return document if isinstance(document, str) else document.model_dump()


def _rank(scored: list[tuple[RerankInput, float]], body: RerankRequest) -> list[Any]:
    """Return the documents of one query, best first, in the format that the request asks for."""
    order = sorted(range(len(scored)), key=lambda i: -scored[i][1])[: body.topk]
    if body.queries is None:
        return [{"index": i, "relevance_score": scored[i][1]} for i in order]
    if body.return_scores:
        return [{"document": _as_sent(scored[i][0]), "score": scored[i][1]} for i in order]
    return [_as_sent(scored[i][0]) for i in order]
