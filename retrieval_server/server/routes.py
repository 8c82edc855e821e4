"""The routes of the server, which turn request bodies into calls of services and results into responses.

`/retrieve` and `/queries` have two routes each, with and without the index's name in the path.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse

from retrieval_server.engine.metrics import CONTENT_TYPE
from retrieval_server.errors import RequestError
from retrieval_server.folder.passages import Passage
from retrieval_server.server.indexes import LoadedIndex
from retrieval_server.server.search_service import IndexResult
from retrieval_server.server.services import Services
from retrieval_server.server.wire import (
    AccessRequest,
    AccessResponse,
    DocumentsRequest,
    DocumentsResponse,
    Error,
    Health,
    IndexStatus,
    QueriesRequest,
    QueriesResponse,
    Ready,
    ReloadRequest,
    ReloadResponse,
    RetrieveRequest,
    RetrieveResponse,
    ServerLimits,
)
from retrieval_server.source import ScoredPassage

#: Statuses with which requests of foreign web pages are refused.
_FOREIGN = (403, 415, 421)
#: The error responses of the routes, for the API page.
ERRORS: dict[int | str, dict] = {
    status: {"model": Error} for status in (404, 413, *_FOREIGN, 422, 500, 502, 503, 504)
}
_RELOAD_ERRORS: dict[int | str, dict] = {
    status: {"model": Error} for status in (404, 409, 413, *_FOREIGN, 422, 500, 503)
}
_METRICS_EXAMPLE = 'retrieval_requests_total{route="/retrieve",status="200"} 12.0\n'
_Name = Annotated[str, InPath(description="One of the server's indexes.", examples=["wiki"])]


def add_search_routes(router: APIRouter, services: Services) -> None:
    """Add the routes that search: `/retrieve` and `/queries`."""

    @router.post(
        "/retrieve",
        summary="Passages for each query (Search-R1, RAG-R1, SkyRL, rLLM, ASearcher)",
        response_model=RetrieveResponse,
        responses=ERRORS,
    )
    async def retrieve(body: RetrieveRequest, request: Request) -> JSONResponse:
        return await _answer_retrieve(services, body, request, body.index)

    @router.post(
        "/indexes/{name}/retrieve",
        summary="The same, from the index that the path names",
        response_model=RetrieveResponse,
        responses=ERRORS,
    )
    async def retrieve_from(name: _Name, body: RetrieveRequest, request: Request) -> JSONResponse:
        return await _answer_retrieve(services, body, request, _consistent_name(name, body.index))

    @router.post(
        "/queries",
        summary="Passages for each query (R1-Searcher)",
        response_model=QueriesResponse,
        responses=ERRORS,
    )
    async def queries(body: QueriesRequest, request: Request) -> JSONResponse:
        return await _answer_queries(services, body, request, body.index)

    @router.post(
        "/indexes/{name}/queries",
        summary="The same, from the index that the path names",
        response_model=QueriesResponse,
        responses=ERRORS,
    )
    async def queries_from(name: _Name, body: QueriesRequest, request: Request) -> JSONResponse:
        return await _answer_queries(services, body, request, _consistent_name(name, body.index))


def add_document_routes(router: APIRouter, services: Services) -> None:
    """Add the routes that return whole documents and pages: `/documents` and `/access`."""

    @router.post(
        "/documents",
        summary="Whole documents by their ids (BrowseComp-Plus)",
        response_model=DocumentsResponse,
        responses=ERRORS,
    )
    async def documents(body: DocumentsRequest, request: Request) -> JSONResponse:
        result = await services.search.documents(request, body.ids, body.index)
        documents = [passage and _document(passage) for passage in result.items]
        return JSONResponse({"result": documents}, headers=_source_headers(result))

    @router.post(
        "/access",
        summary="Whole pages by their addresses (ASearcher)",
        response_model=AccessResponse,
        responses=ERRORS,
    )
    def access(body: AccessRequest) -> JSONResponse:
        pages = services.pages.require()
        return JSONResponse({"result": [pages.get(url) for url in body.urls]})


def add_health_routes(app: FastAPI, services: Services) -> None:
    """Add `/health` and `/ready`, which need no token."""
    limits = ServerLimits(
        max_queue=services.options.max_queue,
        deadline_s=services.options.deadline_s,
        max_queries=services.search.limits.max_queries,
        max_topk=services.search.limits.max_topk,
    )

    @app.get("/", include_in_schema=False)
    async def page() -> RedirectResponse:
        return RedirectResponse("docs")  # for people who open the address in a browser

    @app.get("/health", summary="Is the process alive, and what does it accept?")
    async def health() -> Health:
        return Health(limits=limits)

    @app.get("/ready", summary="Are the indexes loaded and warmed?", responses={503: ERRORS[503]})
    async def ready() -> Ready:
        indexes = services.indexes
        statuses = {name: _status(indexes.require(name)[1]) for name in indexes.by_name}
        default = statuses[indexes.default].model_dump()
        return Ready(**default, topk=services.search.topk, index=indexes.default, indexes=statuses)


def add_admin_routes(router: APIRouter, services: Services) -> None:
    """Add `/reload` and `/metrics`."""

    @router.post(
        "/reload",
        summary="Replace an index or its encoder without dropping a request",
        responses=_RELOAD_ERRORS,
    )
    async def reload(body: ReloadRequest) -> ReloadResponse:
        name, serving = await services.reload.reload(body.index, body.path, body.encoder)
        return ReloadResponse(index=name, **_status(serving).model_dump())

    @router.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": _METRICS_EXAMPLE}}}},
    )
    async def metrics() -> Response:
        return Response(services.metrics.page(), media_type=CONTENT_TYPE)


async def _answer_retrieve(
    services: Services, body: RetrieveRequest, request: Request, index: str | None
) -> JSONResponse:
    """Search and return the response of `/retrieve`."""
    topk = body.top_k if body.topk is None else body.topk
    result = await services.search.search(request, body.query_list(), topk, index)
    # The response is built from plain types: validating thousands of documents would take longer than the
    # search.
    form = _with_score if body.return_scores else _without_score
    answer: dict = {"result": [[form(hit) for hit in hits] for hits in result.items]}
    if body.query is not None:
        answer |= {"query": body.query, "results": [_flat(hit) for hit in result.items[0]]}
    return JSONResponse(answer, headers=_source_headers(result))


async def _answer_queries(
    services: Services, body: QueriesRequest, request: Request, index: str | None
) -> JSONResponse:
    """Search and return the response of `/queries`."""
    result = await services.search.search(request, body.queries, body.k, index)
    answers = [[f"{hit.passage.id}\t{hit.passage.contents}" for hit in hits] for hits in result.items]
    return JSONResponse({"queries": body.queries, "answers": answers}, headers=_source_headers(result))


def _consistent_name(in_path: str, in_body: str | None) -> str:
    """Return the index's name in the path. Raises RequestError if the body names another one."""
    if in_body not in (None, in_path):
        raise RequestError(422, "bad_input", "index: the path and the body name two different ones; name one")
    return in_path


def _status(serving: LoadedIndex) -> IndexStatus:
    """Return the description of a loaded index for `/ready`."""
    return IndexStatus(index_version=serving.version, **asdict(serving.source.description))


def _source_headers(result: IndexResult) -> dict[str, str]:
    """Return the headers with the name and the version of the index that answered."""
    return {"X-Index": result.index, "X-Index-Version": str(result.version)}


def _document(passage: Passage) -> dict[str, str]:
    """Return the fields of `Document`."""
    document = {"id": passage.id, "contents": passage.contents}
    return document if passage.url is None else document | {"url": passage.url}


def _without_score(hit: ScoredPassage) -> dict[str, str]:
    return _document(hit.passage)


def _with_score(hit: ScoredPassage) -> dict:
    """Return the fields of `ScoredDocument`."""
    return {"document": _document(hit.passage), "score": hit.score}


def _flat(hit: ScoredPassage) -> dict:
    """Return the fields of `FlatDocument`."""
    return _with_score(hit) | {"id": hit.passage.id, "content": hit.passage.contents}
