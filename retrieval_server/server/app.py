"""The HTTP app around one or several sources of documents: indexes, web search engines.

They are loaded in the background after the port is open: ``/health`` answers from the first moment,
``/ready`` when all are loaded and warmed, ``/retrieve`` says 503 until then. Searches run in the engines'
threads; the event loop only moves bytes, so ``/health`` always answers. Every failure is JSON:
``error_answers.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer

from retrieval_server.engine.batching import EngineOptions
from retrieval_server.engine.metrics import CONTENT_TYPE
from retrieval_server.errors import RetrievalServerError
from retrieval_server.search.rerank import Reranker
from retrieval_server.server.error_answers import add_error_handlers
from retrieval_server.server.indexes import Loader, Serving
from retrieval_server.server.middleware import BearerToken, BodyLimit, Measure
from retrieval_server.server.origins import HostNames, JsonOnly, OwnOrigin
from retrieval_server.server.reload import Reloader
from retrieval_server.server.rerank_route import add_rerank_route
from retrieval_server.server.service import Found, Refused, RetrievalService
from retrieval_server.server.shedding import LoopWatch, Shed
from retrieval_server.server.wire import (
    DEFAULT_INDEX,
    AccessRequest,
    AccessResponse,
    Error,
    Health,
    IndexStatus,
    Limits,
    QueriesRequest,
    QueriesResponse,
    Ready,
    ReloadRequest,
    ReloadResponse,
    RetrieveRequest,
    RetrieveResponse,
)
from retrieval_server.sources import Retrieved

log = logging.getLogger(__name__)
_REFUSALS = (403, 415, 421)  # of what a web page of another site can send
_ERRORS: dict[int | str, dict] = {
    code: {"model": Error} for code in (404, 413, *_REFUSALS, 422, 500, 502, 503, 504)
}
_RELOAD_ERRORS: dict[int | str, dict] = {
    code: {"model": Error} for code in (404, 409, 413, *_REFUSALS, 422, 500, 503)
}
_METRICS_EXAMPLE = 'retrieval_requests_total{route="/retrieve",status="200"} 12.0\n'
_Name = Annotated[str, InPath(description="One of the server's indexes.", examples=["wiki"])]


def create_app(
    load: Loader | Mapping[str, Loader],
    *,
    topk: int = 3,
    limits: Limits | None = None,
    options: EngineOptions | None = None,
    pages: Path | None = None,
    reloader: Reloader | None = None,
    token: str | None = None,
    reranker: Reranker | None = None,
    hosts: HostNames | None = None,
    log_queries: bool = False,
    on_ready: Callable[[], None] | None = None,
    on_load_failure: Callable[[BaseException], None] | None = None,
) -> FastAPI:
    """The FastAPI app; ``load`` makes the source and is called once, in a worker thread.

    Several indexes are a mapping of names to such functions, the default one first. ``topk`` is for requests
    that name none, ``pages`` the file of ``/access``; without ``reloader`` there is no ``/reload``.
    With ``token`` all but health, readiness and the page about the API needs it; ``hosts`` are the names that
    a request may ask for (None: any). ``log_queries`` puts the queries' words into the log.
    ``on_ready`` is called when everything is loaded, ``on_load_failure`` if that fails, to stop the server.
    """
    loaders = load if isinstance(load, Mapping) else {DEFAULT_INDEX: load}
    service = RetrievalService(
        loaders, limits or Limits(), topk, options or EngineOptions(), pages, reloader, log_queries
    )

    watch = LoopWatch()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        def report(done: asyncio.Future) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error(
                    "the index could not be loaded: %s",
                    error,
                    exc_info=None if isinstance(error, RetrievalServerError) else error,
                )
                if on_load_failure is not None:
                    on_load_failure(error)
            elif on_ready is not None and not done.cancelled():
                on_ready()

        watching = asyncio.create_task(watch.watch())
        loading = asyncio.create_task(service.load())
        loading.add_done_callback(report)
        yield
        loading.cancel()
        watching.cancel()
        await service.stop()

    app = FastAPI(
        title="Retrieval server",
        description="Passages for the queries of search agents, from indexes or web search engines.",
        lifespan=lifespan,
    )
    app.state.service = service
    add_error_handlers(app)
    # For the page about the API only; the middleware is what keeps others out.
    guarded = APIRouter(dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [])
    _add_search_routes(guarded, service)
    _add_operations(guarded, service)
    if reranker is not None:
        add_rerank_route(guarded, service, reranker, _ERRORS)
    app.include_router(guarded)
    _add_probes(app, service)
    routes = frozenset(app.openapi()["paths"])
    app.add_middleware(BodyLimit, max_bytes=service.limits.max_body_bytes)
    app.add_middleware(Shed, watch=watch, refusal=service.refusal)
    app.add_middleware(JsonOnly, metrics=service.metrics)
    if token:
        app.add_middleware(BearerToken, token=token, metrics=service.metrics)
    app.add_middleware(OwnOrigin, hosts=hosts, metrics=service.metrics)
    app.add_middleware(Measure, metrics=service.metrics, routes=routes)
    return app


def _add_search_routes(app: APIRouter, service: RetrievalService) -> None:
    async def answer_retrieve(body: RetrieveRequest, request: Request, index: str | None) -> JSONResponse:
        topk = body.top_k if body.topk is None else body.topk
        found = await service.search(request, body.asked(), topk, index)
        # Built as plain types: validating thousands of documents again would cost more than finding them.
        shape = _scored if body.return_scores else _document
        answer: dict = {"result": [[shape(hit) for hit in hits] for hits in found.answers]}
        if body.query is not None:
            answer |= {"query": body.query, "results": [_flat(hit) for hit in found.answers[0]]}
        return JSONResponse(answer, headers=_source(found))

    async def answer_queries(body: QueriesRequest, request: Request, index: str | None) -> JSONResponse:
        found = await service.search(request, body.queries, body.k, index)
        answers = [[f"{hit.passage.id}\t{hit.passage.contents}" for hit in hits] for hits in found.answers]
        return JSONResponse({"queries": body.queries, "answers": answers}, headers=_source(found))

    @app.post(
        "/retrieve",
        summary="Passages for each query (Search-R1, RAG-R1, SkyRL, rLLM, ASearcher)",
        response_model=RetrieveResponse,
        responses=_ERRORS,
    )
    async def retrieve(body: RetrieveRequest, request: Request):
        return await answer_retrieve(body, request, body.index)

    @app.post(
        "/indexes/{name}/retrieve",
        summary="The same, out of the index that the path names",
        response_model=RetrieveResponse,
        responses=_ERRORS,
    )
    async def retrieve_from(name: _Name, body: RetrieveRequest, request: Request):
        return await answer_retrieve(body, request, _one_name(name, body.index))

    @app.post(
        "/queries",
        summary="Passages for each query (R1-Searcher)",
        response_model=QueriesResponse,
        responses=_ERRORS,
    )
    async def queries(body: QueriesRequest, request: Request):
        return await answer_queries(body, request, body.index)

    @app.post(
        "/indexes/{name}/queries",
        summary="The same, out of the index that the path names",
        response_model=QueriesResponse,
        responses=_ERRORS,
    )
    async def queries_from(name: _Name, body: QueriesRequest, request: Request):
        return await answer_queries(body, request, _one_name(name, body.index))

    @app.post(
        "/access",
        summary="Whole pages by their addresses (ASearcher)",
        response_model=AccessResponse,
        responses=_ERRORS,
    )
    def access(body: AccessRequest):
        pages = service.require_pages()
        return JSONResponse({"result": [pages.get(url) for url in body.urls]})


def _add_probes(app: FastAPI, service: RetrievalService) -> None:
    @app.get("/health", summary="Is the process alive?")
    async def health() -> Health:
        return Health()

    @app.get("/ready", summary="Are the indexes loaded and warmed?", responses={503: _ERRORS[503]})
    async def ready() -> Ready:
        statuses = {name: _status(service.require_ready(name)[1]) for name in service.indexes}
        default = statuses[service.default].model_dump()
        return Ready(**default, topk=service.topk, index=service.default, indexes=statuses)


def _add_operations(app: APIRouter, service: RetrievalService) -> None:
    @app.post(
        "/reload",
        summary="Exchange an index or its encoder without a dropped request",
        responses=_RELOAD_ERRORS,
    )
    async def reload(body: ReloadRequest) -> ReloadResponse:
        name, serving = await service.reload(body.index, body.path, body.encoder)
        return ReloadResponse(index=name, **_status(serving).model_dump())

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": _METRICS_EXAMPLE}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _one_name(in_path: str, in_body: str | None) -> str:
    if in_body not in (None, in_path):
        raise Refused(422, "bad_input", "index: the path and the body name two different ones")
    return in_path


def _status(serving: Serving) -> IndexStatus:
    return IndexStatus(index_version=serving.version, **asdict(serving.source.description))


def _source(found: Found) -> dict[str, str]:
    return {"X-Index": found.index, "X-Index-Version": str(found.version)}


def _document(hit: Retrieved) -> dict[str, str]:
    passage = hit.passage
    document = {"id": passage.id, "contents": passage.contents}
    return document if passage.url is None else document | {"url": passage.url}


def _scored(hit: Retrieved) -> dict:
    return {"document": _document(hit), "score": hit.score}


def _flat(hit: Retrieved) -> dict:
    return _scored(hit) | {"id": hit.passage.id, "content": hit.passage.contents}
