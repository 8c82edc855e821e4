"""Serves index folders, or a web search engine, over HTTP.

    rag-r1 index serve --index indexes/wiki
    curl -s localhost:8000/retrieve -H 'content-type: application/json' -d '{"queries": ["Who wrote Emma?"]}'

The interactive page of the API is at /docs. If the environment variable RETRIEVAL_TOKEN is set, every client
must send it, as the header "Authorization: Bearer TOKEN". Several indexes in one server:

    rag-r1 index serve --index wiki=indexes/wiki --index news=indexes/news

An index in shards, on the machines of a Ray cluster:

    rag-r1 index serve --serve ray --ray-address auto --index indexes/wiki-in-shards

A web search engine, with its answers recorded; then the same run again, free of charge:

    SERPER_API_KEY=... rag-r1 index serve --web serper --record run.jsonl
    rag-r1 index serve --web serper --replay run.jsonl
"""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script: find the package beside this file, and let no module here shadow one from elsewhere.
if __package__ in (None, ""):
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.errors import UserError
from retrieval_server.serve_checks import ServedSources, check_here, check_sources
from retrieval_server.serve_options import ServeCommand, parse_args
from retrieval_server.server.log_format import set_up_logs
from retrieval_server.web.options import WEB

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from retrieval_server.search.reranker import Reranker
    from retrieval_server.server.reload import IndexLocation
    from retrieval_server.source import StagedSource

TOKEN_VARIABLE = "RETRIEVAL_TOKEN"
#: Seconds that an unused connection stays open. Longer than clients keep one, so that they close it: a server
#: that closes first meets, now and then, the request that is just being sent.
_KEEP_ALIVE_S = 75
_NO_TOKEN = """\
WARNING: --host {host} without RETRIEVAL_TOKEN: anybody who can reach this address can search the indexes and
WARNING: reload them. Set the environment variable to a secret, or listen on 127.0.0.1."""


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index serve") -> int:
    command = parse_args(__doc__, argv, prog, check_here)
    set_up_logs(command.logs.log_format, command.logs.level)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and not _is_loopback(command.host):
        print(_NO_TOKEN.format(host=command.host), file=sys.stderr, flush=True)
    _set_up_process()
    try:  # before an index is loaded, which may take minutes
        sources = check_sources(command)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with sources.listener:
        if not command.check_only:
            return serve(command, sources, token or None)
        served = "; ".join(_descriptions(command, sources))
        print(f"all checks passed: would serve {served} at {_address(command, sources)}")
    if sources.ray is not None:
        sources.ray.close()
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _set_up_process() -> None:
    """Set how this process uses CPU and memory; called before anything imports torch or FAISS."""
    from retrieval_server.encode import cpu_settings, malloc

    malloc.limit_heaps()
    malloc.trim_heap_regularly()
    cpu_settings.set_switch_interval()
    cpu_settings.set_passive_wait()
    cpu_settings.set_mkl_reproducible()


def serve(command: ServeCommand, sources: ServedSources, token: str | None) -> int:
    """Serve until a signal stops the server, or an index does not load. Returns the exit status."""
    import uvicorn

    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    def ready() -> None:
        _report_guarantees(app, sources.reranker)
        print(f"serving on {_address(command, sources)}", flush=True)

    app = make_app(command, sources, token, on_ready=ready, on_load_failure=fail)
    server = uvicorn.Server(_configure(command, app))

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn stops gracefully by itself: it closes the port, answers what it has accepted, and then raises
    # the signal once more. This handler receives that one, so that an ordered stop ends with status 0.
    _handle_stop_signals(stop)
    for description in _descriptions(command, sources):
        print(f"loading {description}", flush=True)
    server.run(sockets=[sources.listener])
    _handle_stop_signals(signal.SIG_IGN)  # a second signal does not change the status either
    if sources.ray is not None:
        sources.ray.close()
    if failures:
        print(f"error: {failures[0]}", file=sys.stderr)
        return 2
    return 0


def _handle_stop_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def make_app(
    command: ServeCommand,
    sources: ServedSources,
    token: str | None,
    *,
    on_ready: Callable[[], None],
    on_load_failure: Callable[[BaseException], None],
) -> FastAPI:
    """The app; it loads the indexes when it is started, and then calls `on_ready`, or `on_load_failure`."""
    from retrieval_server.server.app import create_app
    from retrieval_server.server.http.origin_check import HostNames, server_names
    from retrieval_server.server.indexes import Loader, LoadProgress
    from retrieval_server.server.reload import IndexLocation, Reloader

    encoder = command.opening.encoder
    locations = {name: IndexLocation(folder, encoder) for name, folder in command.folders.items()}
    progress = LoadProgress()
    reloader = Reloader(locations, _opener(command, sources, progress), command.reload_root)
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


def _opener(
    command: ServeCommand, sources: ServedSources, on_step: Callable[[str], None]
) -> Callable[[IndexLocation], StagedSource]:
    """What opens an index, at start and for each reload."""
    from retrieval_server.search.index_source import IndexSource
    from retrieval_server.search.reranker import RerankedSource

    ray, reranker, depth = sources.ray, sources.reranker, command.rerank.rerank_depth

    def open_index(location: IndexLocation) -> StagedSource:
        options = command.opening.model_copy(update={"encoder": location.encoder})
        source: StagedSource
        if ray is not None:
            on_step(f"{location.path.name}: its replicas on Ray")
            deadline_s = command.engine.deadline_s
            source = ray.open(location.path, options, verify=command.verify, deadline_s=deadline_s)
        else:
            source = IndexSource.open(location.path, verify=command.verify, options=options, on_step=on_step)
        if reranker is not None:
            on_step(f"the cross-encoder {reranker.name}")
            reranker.load()  # now: a model that does not load ends the start
            source = RerankedSource(source, reranker, depth) if depth else source
        on_step(f"{location.path.name}: a first query")
        return source

    return open_index


def _configure(command: ServeCommand, app: FastAPI) -> uvicorn.Config:
    import uvicorn

    from retrieval_server.server.http.connection_limits import limited_protocol

    return uvicorn.Config(
        app,
        host=command.host,
        port=command.port,
        log_level=command.logs.level,
        log_config=None,
        access_log=False,
        http=limited_protocol(command.connections),
        ws="none",
        proxy_headers=False,  # neither the client's address nor the scheme is used here: nothing to forge
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


def _address(command: ServeCommand, sources: ServedSources) -> str:
    return f"http://{command.host}:{sources.listener.getsockname()[1]}"


def _descriptions(command: ServeCommand, sources: ServedSources) -> Iterator[str]:
    """What is served, one text for each name."""
    for name, folder in command.folders.items():
        first = sources.shards[name][0][1]
        details = f"{sum(manifest.count for _, manifest in sources.shards[name])} passages, {first.backend}"
        if first.dense is not None:  # the folder chooses the model: named before it is loaded
            details += f", encoder {command.opening.encoder or first.dense.encoder.name}"
        yield f"{name}={folder}: {details}"
    if sources.web is not None:
        yield f"{WEB}={command.web.web}: {sources.web.note}"


def _report_guarantees(app: FastAPI, reranker: Reranker | None) -> None:
    for name, index in app.state.services.indexes.by_name.items():
        if index.guarantee is not None:
            print(f"{name} guarantees {index.guarantee}: {index.guarantee.meaning}", flush=True)
    if reranker is not None:
        print(f"/rerank guarantees {reranker.guarantee}: {reranker.guarantee.meaning}", flush=True)


if __name__ == "__main__":
    sys.exit(main(prog="python retrieval_server/start_retrieval.py"))
