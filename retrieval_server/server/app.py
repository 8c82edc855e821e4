"""Creates the FastAPI app that serves one or more sources: indexes or web search engines.

The sources are loaded in the background after the port is open. `/health` answers at once; `/ready` and the
searches answer 503 until everything is loaded and warmed up. Searches run in the engines' threads, so the
event loop stays free and `/health` always answers. Every error is a JSON response (`error_responses.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer

from retrieval_server.determinism import Determinism
from retrieval_server.errors import UserError
from retrieval_server.search.reranker import Reranker
from retrieval_server.server import routes
from retrieval_server.server.error_responses import add_error_handlers
from retrieval_server.server.http.json_bodies import limited_route
from retrieval_server.server.http.load_shedding import LoadSheddingMiddleware, LoopMonitor
from retrieval_server.server.http.middleware import BodyLimitMiddleware, MetricsMiddleware, TokenMiddleware
from retrieval_server.server.http.origin_check import HostNames, JsonMiddleware, OriginMiddleware
from retrieval_server.server.indexes import Loader
from retrieval_server.server.rerank_route import add_rerank_route
from retrieval_server.server.services import Services, ServiceSettings
from retrieval_server.server.wire import DEFAULT_INDEX

log = logging.getLogger(__name__)
#: Values of a body besides its queries, such as those of the documents of `/rerank`.
_MAX_OTHER_VALUES = 100_000
#: Called with the guarantee of each index when everything is loaded.
OnReady = Callable[[Mapping[str, Determinism]], None]
#: Called with the error if loading fails.
OnLoadFailure = Callable[[BaseException], None]


def create_app(
    load: Loader | Mapping[str, Loader],
    *,
    token: str | None = None,
    reranker: Reranker | None = None,
    hosts: HostNames | None = None,
    on_ready: OnReady | None = None,
    on_load_failure: OnLoadFailure | None = None,
    **settings: Unpack[ServiceSettings],
) -> FastAPI:
    """Return the FastAPI app of the sources that `load` opens.

    `load` is called once, in a worker thread. For several indexes it is a mapping of names to such functions,
    the default index first. With a `token`, every request must send it, except for health, readiness and the
    API page. `hosts` are the names under which the server may be addressed (None: any). `settings` are passed
    to `Services.make`. `on_load_failure` allows the caller to stop the server.
    """
    services = Services.make(load if isinstance(load, Mapping) else {DEFAULT_INDEX: load}, **settings)
    monitor = LoopMonitor()
    app = FastAPI(
        title="Retrieval server",
        description="Passages for the queries of search agents, from indexes or web search engines.",
        lifespan=_lifespan(services, monitor, on_ready, on_load_failure),
    )
    app.state.services = services
    add_error_handlers(app)
    guarded = APIRouter(
        # This only documents the token on the API page; the middleware checks it.
        dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [],
        route_class=limited_route(services.search.limits.max_queries + _MAX_OTHER_VALUES),
    )
    routes.add_search_routes(guarded, services)
    routes.add_document_routes(guarded, services)
    routes.add_admin_routes(guarded, services)
    if reranker is not None:
        add_rerank_route(guarded, services, reranker, routes.ERRORS)
    app.include_router(guarded)
    routes.add_health_routes(app, services)
    _add_middleware(app, services, monitor, token, hosts)
    return app


def _lifespan(
    services: Services, monitor: LoopMonitor, on_ready: OnReady | None, on_load_failure: OnLoadFailure | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return the app's lifespan, which loads the services at the start and stops them at the end."""

    def report(loading: asyncio.Future) -> None:
        """Call `on_ready`, or log the error and call `on_load_failure`."""
        if loading.cancelled():
            return
        error = loading.exception()
        if error is None:
            if on_ready is not None:
                on_ready(services.indexes.guarantees)
            return
        trace = None if isinstance(error, UserError) else error  # the text of a UserError is sufficient
        name = services.indexes.failed_name
        part = f"the pages {services.pages.path}" if name is None else f"the index {name}"
        log.error("%s could not be loaded: %s", part, error, exc_info=trace)
        if on_load_failure is not None:
            on_load_failure(error)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(monitor.watch())
        loading = asyncio.create_task(services.load())
        loading.add_done_callback(report)
        yield
        loading.cancel()
        watching.cancel()
        await services.stop()

    return lifespan


def _add_middleware(
    app: FastAPI, services: Services, monitor: LoopMonitor, token: str | None, hosts: HostNames | None
) -> None:
    """Add the layers around the routes; the last one added is the outermost."""
    metrics = services.metrics
    own_routes = frozenset(app.openapi()["paths"])
    app.add_middleware(BodyLimitMiddleware, max_bytes=services.search.limits.max_body_bytes)
    app.add_middleware(LoadSheddingMiddleware, monitor=monitor, services=services)
    app.add_middleware(JsonMiddleware, metrics=metrics)
    if token:
        app.add_middleware(TokenMiddleware, token=token, metrics=metrics)
    app.add_middleware(OriginMiddleware, hosts=hosts, metrics=metrics)
    app.add_middleware(MetricsMiddleware, metrics=metrics, routes=own_routes)
