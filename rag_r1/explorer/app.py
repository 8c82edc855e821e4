"""The HTTP app of the explorer: the page, and its JSON API under `/api`, which accepts only GET.

    /api/overview                  runs, values of filters, columns
    /api/version                   a number that grows when records have been read, and the reading's progress
    /api/trajectories?FILTERS      rows and their number          (sort, order, offset, limit)
    /api/histogram?FILTERS         the distribution of a `column`
    /api/causes?FILTERS            causes of wrong answers
    /api/trajectory/TID            one trajectory with its record
    /api/compare?a=RUN&b=RUN       two runs on their common questions (a_step, b_step, offset, limit)
    /api/charts?run=RUN&FILTERS    curves over the steps
    /api/export?tid=N&tid=N        a static page with these trajectories

Each query runs in a thread, and is interrupted if its client disconnects. Errors are JSON: status 422 for a
wrong parameter, 404 for something that does not exist, 500 for a bug, and 503 while a broken cache is being
rebuilt.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import duckdb
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rag_r1.explorer import queries
from rag_r1.explorer.cache import is_broken
from rag_r1.explorer.charts import charts
from rag_r1.explorer.export import export_page
from rag_r1.explorer.filters import MAX_ROWS, FilterError, selection_of, sortable_column, whole_number
from rag_r1.explorer.page import PAGE_FILES
from rag_r1.explorer.queries import Connection
from rag_r1.explorer.store import Store
from rag_r1.explorer.trajectory import trajectory
from rag_r1.explorer.watcher import Watcher
from rag_r1.http_server.errors import ErrorReply, RequestError, error_response, http_error_response
from rag_r1.http_server.request_guard import RequestGuard
from rag_r1.http_server.responses import disconnected, serve_files
from rag_r1.io.errors import DataError

logger = logging.getLogger(__name__)

#: The largest offset, step and trajectory number that a request may have.
_MAX_NUMBER = 10**9
#: The error of a request while a broken cache is being rebuilt, and the headers of its response.
_REBUILDING = ErrorReply(503, "rebuilding", "the cache was broken and is read anew")
_RETRY_HEADERS = {"Retry-After": "2"}
#: Computes the answer to a request from the cache.
Query = Callable[[Connection, "Parameters"], Any]


class _JsonResponse(JSONResponse):
    """JSON in ASCII: a record may have lone surrogates, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Parameters:
    """The parameters of a request.

    Parameters in `names` may occur once each. All others are `filters` if the request accepts them
    (`has_filters`), and raise FilterError otherwise.
    """

    def __init__(self, items: Iterable[tuple[str, str]], names: Iterable[str], has_filters: bool):
        self.filters: list[tuple[str, str]] = []
        self._values: dict[str, str] = {}
        names = set(names)
        for name, value in items:
            if name not in names:
                if not has_filters:
                    remedy = f"use {', '.join(sorted(names))}" if names else "leave it out"
                    raise FilterError(f"there is no parameter {name[:50]!r}: {remedy}")
                self.filters.append((name, value))
            elif name in self._values:
                raise FilterError(f"{name} may be given only once")
            else:
                self._values[name] = value

    def text(self, name: str, default: str | None = None) -> str:
        """Return the text of a parameter. Raises FilterError if it is missing and has no default."""
        value = self._values.get(name, default)
        if value is None:
            raise FilterError(f"{name} is missing")
        return value

    def window(self, default: int) -> tuple[int, int]:
        """Return the parameters `offset`, by default 0, and `limit`, by default `default`. Raises
        FilterError."""
        offset = self.number("offset", 0, _MAX_NUMBER)
        return offset or 0, self.number("limit", default, MAX_ROWS) or 0

    def number(self, name: str, default: int | None, maximum: int) -> int | None:
        """Return a parameter as a whole number from 0 to `maximum`, or the default. Raises FilterError."""
        return whole_number(name, self._values[name], 0, maximum) if name in self._values else default


def create_app(
    store: Store, *, names: Iterable[str] = (), allowed: Iterable[str] = (), token: str | None = None
) -> FastAPI:
    """Create the app.

    `names` and `allowed` are the host names that requests may use, and `token` is the bearer token that they
    must send; RequestGuard checks all three. The store is refreshed while the app runs, so the server must
    support ASGI's lifespan events.
    """
    watcher = Watcher(store)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        try:
            yield
        finally:
            await asyncio.to_thread(watcher.stop)

    app = FastAPI(title="RAG-R1 explorer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_api(app, store, watcher)
    _add_error_handlers(app)
    serve_files(app, PAGE_FILES)
    app.add_middleware(RequestGuard, names=names, allowed=allowed, token=token, open_paths=PAGE_FILES)
    return app


def _add_api(app: FastAPI, store: Store, watcher: Watcher) -> None:
    """Add the routes of the API."""

    def route(path: str, names: Sequence[str], query: Query, *, has_filters: bool = False) -> None:
        async def answer(request: Request) -> Response:
            parameters = Parameters(request.query_params.multi_items(), names, has_filters)
            return _JsonResponse(await _run_query(request, store, lambda cache: query(cache, parameters)))

        app.get(f"/api/{path}", response_model=None)(answer)

    @app.get("/api/version")
    async def version() -> dict[str, Any]:
        return {"version": store.version, "reading": vars(store.reading), "problem": watcher.problem}

    @app.get("/api/trajectory/{name}", response_model=None)
    async def one_trajectory(request: Request, name: str) -> Response:
        tid = whole_number("trajectory", name.removeprefix("t"), 0, _MAX_NUMBER)
        return _JsonResponse(await _run_query(request, store, lambda cache: trajectory(cache, tid)))

    @app.get("/api/export", response_model=None)
    async def export(request: Request) -> Response:
        items = request.query_params.multi_items()
        if unknown := [name for name, _ in items if name != "tid"]:
            raise FilterError(f"there is no parameter {unknown[0][:50]!r}: use tid")
        tids = list(dict.fromkeys(whole_number("tid", value, 0, _MAX_NUMBER) for _, value in items))
        page = await _run_query(request, store, lambda cache: export_page(cache, store.title, tids))
        headers = {"content-disposition": 'attachment; filename="trajectories.html"'}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    route("overview", (), lambda cache, _: queries.overview(cache, store))
    route("trajectories", ("sort", "order", "offset", "limit"), _trajectories, has_filters=True)
    route("histogram", ("column",), _histogram, has_filters=True)
    route("causes", (), _causes, has_filters=True)
    route("compare", ("a", "b", "a_step", "b_step", "offset", "limit"), _compare)
    route("charts", ("run",), _charts, has_filters=True)


def _causes(cache: Connection, parameters: Parameters) -> Any:
    return queries.causes(cache, selection_of(parameters.filters))


def _charts(cache: Connection, parameters: Parameters) -> Any:
    return charts(cache, parameters.text("run"), selection_of(parameters.filters))


def _trajectories(cache: Connection, parameters: Parameters) -> Any:
    sort = sortable_column("sort", parameters.text("sort", "tid"))
    order = parameters.text("order", "asc")
    if order not in ("asc", "desc"):
        raise FilterError(f"order must be asc or desc, not {order[:50]!r}")
    offset, limit = parameters.window(100)
    selection = selection_of(parameters.filters)
    return queries.trajectories(cache, selection, sort, order == "desc", offset, limit)


def _histogram(cache: Connection, parameters: Parameters) -> Any:
    name = sortable_column("column", parameters.text("column"))
    return queries.histogram(cache, selection_of(parameters.filters), name)


def _compare(cache: Connection, parameters: Parameters) -> Any:
    a = parameters.text("a"), parameters.number("a_step", None, _MAX_NUMBER)
    b = parameters.text("b"), parameters.number("b_step", None, _MAX_NUMBER)
    offset, limit = parameters.window(200)
    return queries.compare(cache, a, b, offset, limit)


async def _run_query(request: Request, store: Store, query: Callable[[Connection], Any]) -> Any:
    """Run a query in a thread, and return its result; the query is interrupted if the client disconnects.

    If the cache turns out to be broken, it is replaced by an empty one, and RequestError is raised.
    """
    generation = store.cache.generation
    connection = store.cache.connection()
    query_task = asyncio.create_task(asyncio.to_thread(query, connection))
    disconnection = asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait({query_task, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if not query_task.done():
            connection.interrupt()
        return await query_task
    except duckdb.Error as error:
        if not is_broken(error):
            raise
        logger.warning("the cache of the explorer is broken and is read anew: %s", error)
        await asyncio.to_thread(store.rebuild, generation)
        raise RequestError(*_REBUILDING, _RETRY_HEADERS) from error
    finally:
        disconnection.cancel()
        if not query_task.done():  # the request was cancelled; the thread still uses the connection
            connection.interrupt()
        else:
            connection.close()


def _add_error_handlers(app: FastAPI) -> None:
    """Answer errors with JSON, and with the status that the module's docstring lists."""
    app.exception_handler(HTTPException)(http_error_response)

    @app.exception_handler(FilterError)
    async def bad_input(_: Request, error: FilterError) -> JSONResponse:
        return error_response(422, "bad_input", str(error))

    @app.exception_handler(DataError)
    async def not_found(_: Request, error: DataError) -> JSONResponse:
        return error_response(404, "not_found", str(error))

    @app.exception_handler(duckdb.InterruptException)
    async def interrupted(_: Request, error: duckdb.InterruptException) -> Response:
        return Response(status_code=499)  # the client has gone, so nobody reads this

    @app.exception_handler(duckdb.ConnectionException)
    async def rebuilding(_: Request, error: duckdb.ConnectionException) -> JSONResponse:
        # Another request, or the watcher, has closed the cache.
        return error_response(*_REBUILDING, _RETRY_HEADERS)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        logger.error("unexpected error", exc_info=error)
        return error_response(500, "error", "an error of the explorer; its log has the details")
