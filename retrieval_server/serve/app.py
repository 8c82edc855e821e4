"""Creates the app and uvicorn's settings for `rag-r1 index serve`, from options and checked sources."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.reranker import RerankedSource
from retrieval_server.serve.checks import ServedSources
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.app import OnLoadFailure, OnReady, create_app
from retrieval_server.server.http.connection_limits import limited_protocol
from retrieval_server.server.http.origin_check import HostNames, server_names
from retrieval_server.server.indexes import Loader, LoadProgress
from retrieval_server.server.reload import IndexLocation, Reloader
from retrieval_server.source import StagedSource
from retrieval_server.web.options import WEB

#: Seconds that an unused connection stays open. Clients close theirs earlier; if the server closed a
#: connection first, a client might be sending a request at that moment.
_KEEP_ALIVE_S = 75


def make_app(
    command: ServeCommand,
    sources: ServedSources,
    token: str | None,
    *,
    on_ready: OnReady,
    on_load_failure: OnLoadFailure,
) -> FastAPI:
    """Return the app, which loads the indexes when it starts and then calls one of the two callbacks.

    It calls neither if it is stopped before.
    """
    encoder = command.search.encoder
    locations = {name: IndexLocation(folder, encoder) for name, folder in command.folders.items()}
    progress = LoadProgress()
    reloader = Reloader(locations, IndexOpener(command, sources, progress), command.reload_root)
    loaders: dict[str, Loader] = {name: reloader.loader(location) for name, location in locations.items()}
    if (web := sources.web) is not None:
        loaders[WEB] = lambda: web
    return create_app(
        loaders,
        topk=command.topk,
        limits=command.limits,
        options=command.engine,
        pages=command.pages,
        reloader=reloader,
        reranker=sources.reranker,
        token=token,
        hosts=HostNames(server_names(command.host), command.allowed_host),
        log_queries=command.logs.log_queries,
        progress=progress,
        on_ready=on_ready,
        on_load_failure=on_load_failure,
    )


class IndexOpener:
    """Opens the index at a location, at the start and for each reload. It calls `on_step` before each step.

    Raises UserError if the cross-encoder does not load or the index cannot be opened.
    """

    def __init__(self, command: ServeCommand, sources: ServedSources, on_step: Callable[[str], None]):
        self._command, self._sources, self._on_step = command, sources, on_step

    def __call__(self, location: IndexLocation) -> StagedSource:
        options = self._command.search.model_copy(update={"encoder": location.encoder})
        if (reranker := self._sources.reranker) is not None:
            self._on_step(f"the cross-encoder {reranker.name}")
            reranker.load()  # before the index, which would stay open if the model does not load
        source = self._with_reranker(self._open(location, options))
        self._on_step(f"{location.path.name}: a first query")
        return source

    def _open(self, location: IndexLocation, options: OpenOptions) -> StagedSource:
        """Open the index in this process or on Ray."""
        path = location.path
        verify = self._command.verify
        if self._sources.ray is None:
            return IndexSource.open(path, verify=verify, options=options, on_step=self._on_step)
        self._on_step(f"{path.name}: its replicas on Ray")
        deadline_s = self._command.engine.deadline_s
        return self._sources.ray.open(path, options, verify=verify, deadline_s=deadline_s)

    def _with_reranker(self, source: StagedSource) -> StagedSource:
        """Return the source, reranked by the cross-encoder if the command has one that orders passages."""
        reranker, depth = self._sources.reranker, self._command.rerank.rerank_depth
        return source if reranker is None or not depth else RerankedSource(source, reranker, depth)


def server_config(command: ServeCommand, app: FastAPI) -> uvicorn.Config:
    """Return uvicorn's settings for the app."""
    return uvicorn.Config(
        app,
        host=command.host,
        port=command.port,
        log_level=command.logs.level,
        log_config=None,
        access_log=False,
        http=limited_protocol(command.connections),
        ws="none",
        proxy_headers=False,  # unused headers cannot be forged; the server needs neither address nor scheme
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
