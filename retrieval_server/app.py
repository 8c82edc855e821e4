"""The HTTP app around one source of documents: an index, or a web search engine.

The index is loaded in the background after the port is open: ``/health`` answers from the first moment,
``/ready`` when the index is loaded and warmed, ``/retrieve`` says 503 until then. Searches run in the
engine's threads; the event loop only moves bytes, so ``/health`` always answers. Every failure is JSON:
``{"error": word, "reason": sentence}``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from retrieval_server.batching import EngineOptions
from retrieval_server.errors import RetrievalServerError
from retrieval_server.metrics import CONTENT_TYPE
from retrieval_server.middleware import BodyLimit, Measure
from retrieval_server.service import ClientGone, Refused, RetrievalService
from retrieval_server.sources import Retrieved, Source
from retrieval_server.wire import (
    AccessRequest,
    AccessResponse,
    Error,
    Health,
    Limits,
    QueriesRequest,
    QueriesResponse,
    Ready,
    RetrieveRequest,
    RetrieveResponse,
)

log = logging.getLogger(__name__)
_ERRORS: dict[int | str, dict] = {code: {"model": Error} for code in (413, 422, 500, 502, 503, 504)}


def _answer(status: int, error: str, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(Error(error=error, reason=reason).model_dump(), status, headers)


def create_app(
    load: Callable[[], Source],
    *,
    topk: int = 3,
    limits: Limits | None = None,
    options: EngineOptions | None = None,
    pages: Path | None = None,
    on_load_failure: Callable[[BaseException], None] | None = None,
) -> FastAPI:
    """The FastAPI app; ``load`` makes the source and is called once, in a worker thread.

    ``topk`` is for requests that name none, ``pages`` the file of ``/access``. ``on_load_failure`` is told if
    loading fails, to stop the server.
    """
    service = RetrievalService(load, limits or Limits(), topk, options or EngineOptions(), pages)

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

        loading = asyncio.create_task(service.load())
        loading.add_done_callback(report)
        yield
        loading.cancel()
        await service.stop()

    app = FastAPI(
        title="Retrieval server",
        description="Passages for the queries of search agents, from one index or web search engine.",
        lifespan=lifespan,
    )
    app.state.service = service
    _add_error_handlers(app)
    _add_routes(app, service)
    routes = frozenset(app.openapi()["paths"])
    app.add_middleware(BodyLimit, max_bytes=service.limits.max_body_bytes)
    app.add_middleware(Measure, metrics=service.metrics, routes=routes)
    return app


def _add_routes(app: FastAPI, service: RetrievalService) -> None:
    @app.post(
        "/retrieve",
        summary="Passages for each query (Search-R1, RAG-R1, SkyRL, rLLM, ASearcher)",
        response_model=RetrieveResponse,
        responses=_ERRORS,
    )
    async def retrieve(body: RetrieveRequest, request: Request):
        found = await service.search(request, body.asked(), body.top_k if body.topk is None else body.topk)
        # Built as plain types: validating thousands of documents again would cost more than finding them.
        shape = _scored if body.return_scores else _document
        answer: dict = {"result": [[shape(hit) for hit in hits] for hits in found]}
        if body.query is not None:
            answer |= {"query": body.query, "results": [_scored(hit) for hit in found[0]]}
        return JSONResponse(answer)

    @app.post(
        "/queries",
        summary="Passages for each query (R1-Searcher)",
        response_model=QueriesResponse,
        responses=_ERRORS,
    )
    async def queries(body: QueriesRequest, request: Request):
        found = await service.search(request, body.queries, body.k)
        answers = [[f"{hit.passage.id}\t{hit.passage.contents}" for hit in hits] for hits in found]
        return JSONResponse({"queries": body.queries, "answers": answers})

    @app.post(
        "/access",
        summary="Whole pages by their addresses (ASearcher)",
        response_model=AccessResponse,
        responses=_ERRORS | {404: _ERRORS[422]},
    )
    def access(body: AccessRequest):
        pages = service.require_pages()
        return JSONResponse({"result": [pages.get(url) for url in body.urls]})

    @app.get("/health", summary="Is the process alive?")
    async def health() -> Health:
        return Health()

    @app.get("/ready", summary="Is the index loaded and warmed?", responses={503: _ERRORS[503]})
    async def ready() -> Ready:
        return Ready(topk=service.topk, **asdict(service.require_ready().description))

    @app.get("/metrics", summary="Counters for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _document(hit: Retrieved) -> dict[str, str]:
    passage = hit.passage
    document = {"id": passage.id, "contents": passage.contents}
    return document if passage.url is None else document | {"url": passage.url}


def _scored(hit: Retrieved) -> dict:
    return {"document": _document(hit), "score": hit.score}


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ClientGone)
    async def client_gone(_: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # for the metrics only: nobody reads it

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return _answer(error.status, error.error, error.reason, error.headers)

    @app.exception_handler(RequestValidationError)
    async def bad_input(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        keys = [part for part in first["loc"] if part != "body"]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        if first["type"] == "json_invalid":
            return _answer(422, "bad_input", f"the body is not JSON: {first['ctx']['error']}")
        return _answer(422, "bad_input", f"{where or 'body'}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 413:
            return _answer(413, "too_large", error.detail)
        if error.status_code == 400:  # how FastAPI names a body that it cannot parse at all
            return _answer(422, "bad_input", "the body is not JSON in UTF-8")
        word = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        return _answer(error.status_code, word, error.detail, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return _answer(500, "internal", f"the search failed ({type(error).__name__}); see the server's log")
