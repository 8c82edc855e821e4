"""Serves index folders, or a web search engine, over HTTP.

    python retrieval_server/start_retrieval.py --index indexes/wiki
    curl -s localhost:8000/retrieve -H 'content-type: application/json' -d '{"queries": ["Who wrote Emma?"]}'

The interactive page of the API is at /docs. A token in the environment variable RETRIEVAL_TOKEN is asked of
every client, as the header "Authorization: Bearer TOKEN". Several indexes in one server:

    python retrieval_server/start_retrieval.py --index wiki=indexes/wiki --index news=indexes/news

An index in shards, on the machines of a Ray cluster:

    python retrieval_server/start_retrieval.py --serve ray --ray-address auto --index indexes/wiki-in-shards

A web search engine, with its answers recorded; then the same run again at no cost:

    SERPER_API_KEY=... python retrieval_server/start_retrieval.py --web serper --record run.jsonl
    python retrieval_server/start_retrieval.py --web serper --replay run.jsonl
"""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
from pathlib import Path

if __package__ in (
    None,
    "",
):  # run as a script: find the package beside, and do not let its modules shadow others
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.cluster.ray_options import ray_options
from retrieval_server.engine.batching import EngineOptions
from retrieval_server.errors import CorpusError, IndexFolderError, RetrievalServerError
from retrieval_server.flags import parse_args
from retrieval_server.search.backends import OpenOptions
from retrieval_server.server.logs import set_up_logs
from retrieval_server.server.wire import Limits
from retrieval_server.web.flags import WEB, open_web

TOKEN_VARIABLE = "RETRIEVAL_TOKEN"
_NO_TOKEN = """\
WARNING: --host {host} and no RETRIEVAL_TOKEN: everybody who can reach this address can search the indexes and
WARNING: reload them. Set the environment variable to a secret, or listen on 127.0.0.1."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(argv: list[str] | None = None) -> int:
    args = parse_args(__doc__, argv)
    set_up_logs(args.log_format, args.log_level)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and not _is_loopback(args.host):
        print(_NO_TOKEN.format(host=args.host), file=sys.stderr, flush=True)

    import uvicorn

    from retrieval_server.encode.cpu import prefer_reproducible_products, share_the_interpreter
    from retrieval_server.encode.malloc import keep_giving_back

    keep_giving_back()
    share_the_interpreter()
    prefer_reproducible_products()  # before anything imports torch or FAISS

    from retrieval_server.cluster.ray_serve import RayServe
    from retrieval_server.folder.manifest import check_files
    from retrieval_server.folder.shard_set import read_shards
    from retrieval_server.search.index_source import IndexSource
    from retrieval_server.search.rerank import RerankedSource, Reranker
    from retrieval_server.server.app import create_app
    from retrieval_server.server.connections import ConnectionLimits, limited
    from retrieval_server.server.indexes import Loader
    from retrieval_server.server.origins import HostNames, own_names
    from retrieval_server.server.reload import Place, Reloader
    from retrieval_server.sources import StagedSource

    try:  # what can be known at once is said at once, before a port is open
        parts = {name: read_shards(folder) for name, folder in args.index.items()}
        for name, folder in args.index.items():
            for path, manifest in parts[name]:
                check_files(path, manifest, verify=False)
            if len(parts[name]) > 1 and args.serve != "ray":
                raise IndexFolderError(f"{folder}: an index in shards; they are served with --serve ray.")
        if args.pages is not None and not args.pages.is_file():
            raise CorpusError(f"--pages {args.pages}: no such file.")
        web = open_web(args) if args.web else None
        ray = RayServe(ray_options(args), args.index.values()) if args.serve == "ray" else None
    except RetrievalServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    failures: list[BaseException] = []

    def stop(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    reranker = Reranker(args.rerank, args.device) if args.rerank else None

    def open_index(place: Place) -> StagedSource:
        opening = OpenOptions(
            place.encoder,
            args.device,
            args.dtype,
            args.nprobe,
            args.ef_search,
            args.gpu,
            args.gpu_fp16,
            args.mmap,
        )
        source: StagedSource
        if ray is not None:
            source = ray.open(place.path, opening, verify=args.verify, deadline_s=args.deadline)
        else:
            source = IndexSource.open(place.path, verify=args.verify, options=opening)
        if reranker is None:
            return source
        reranker.load()  # now: what is wrong with it ends the start
        return RerankedSource(source, reranker, args.rerank_depth) if args.rerank_depth else source

    def say_ready() -> None:
        for name, index in app.state.service.indexes.items():
            if index.guarantee is not None:
                print(f"{name} guarantees {index.guarantee}: {index.guarantee.meaning}", flush=True)
        if reranker is not None:
            print(f"/rerank guarantees {reranker.guarantee}: {reranker.guarantee.meaning}", flush=True)
        print(f"serving on http://{args.host}:{port}", flush=True)

    places = {name: Place(folder, args.encoder) for name, folder in args.index.items()}
    reloader = Reloader(places, open_index, args.reload_root)
    loaders: dict[str, Loader] = {name: reloader.loader(place) for name, place in places.items()}
    if web is not None:
        loaders[WEB] = lambda: web
    app = create_app(
        loaders,
        topk=args.topk,
        limits=Limits(
            max_queries=args.max_queries, max_query_chars=args.max_query_chars, max_topk=args.max_topk
        ),
        options=EngineOptions(
            max_batch=args.max_batch,
            max_wait_ms=args.max_wait_ms,
            overlap=args.overlap,
            max_queue=args.max_queue,
            deadline_s=args.deadline,
            max_delay_s=args.max_delay,
            cache_size=args.cache_size,
            single_flight=args.single_flight,
        ),
        pages=args.pages,
        reloader=reloader,
        reranker=reranker,
        token=token or None,
        hosts=HostNames(own_names(args.host), args.allowed_host),
        log_queries=args.log_queries,
        on_ready=say_ready,
        on_load_failure=stop,
    )
    config = uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        log_level=args.log_level,
        log_config=None,
        access_log=False,
        http=limited(ConnectionLimits(args.read_timeout, args.max_connections)),
        ws="none",
        proxy_headers=False,  # neither the client's address nor the scheme is used here: nothing to forge
        # Longer than clients keep a connection that they do not use, so that they close it: a server that
        # closes first meets, now and then, the request that is just being sent.
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)

    def stop_gracefully(*_: object) -> None:
        server.should_exit = True

    # uvicorn stops gracefully by itself: it closes the port, answers what it has taken, and then raises the
    # signal once more. This handler receives that one, so that an ordered stop ends with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_gracefully)
    listener = config.bind_socket()  # a port that is taken ends the process here, before the index is loaded
    port = listener.getsockname()[1]
    for name, folder in args.index.items():
        first = parts[name][0][1]
        what = f"{sum(manifest.count for _, manifest in parts[name])} passages, {first.backend}"
        if first.dense is not None:  # the folder chooses the model: said before it is loaded
            what += f", encoder {args.encoder or first.dense.encoder.name}"
        print(f"loading {name}={folder}: {what}", flush=True)
    if web is not None:
        print(f"loading {WEB}={args.web}: {web.note}", flush=True)
    server.run(sockets=[listener])
    for number in (signal.SIGTERM, signal.SIGINT):  # told twice, it ends with status 0 all the same
        signal.signal(number, signal.SIG_IGN)
    if ray is not None:
        ray.close()
    if failures:
        print(f"error: {failures[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
