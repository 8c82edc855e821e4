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
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

# Run as a script: find the package beside this file, and let no module here shadow one from elsewhere.
# Each script does this itself, since it can import nothing of the package before.
if __package__ in (None, ""):
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.command_line import parse
from retrieval_server.determinism import Determinism
from retrieval_server.errors import UserError
from retrieval_server.serve.checks import ServedSources, check_locally, check_sources, token_text
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.log_format import set_up_logs
from retrieval_server.web.options import WEB

_NO_TOKEN = """\
WARNING: --host {host} without RETRIEVAL_TOKEN: anybody who can reach this address can search the indexes and
WARNING: reload them. Set the environment variable to a secret, or listen on 127.0.0.1."""


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index serve") -> int:
    """Serve by a command line until a signal stops the server. Returns the exit status."""
    command = parse(ServeCommand, __doc__, argv, prog, check=check_locally)
    set_up_logs(command.logs.log_format, command.logs.level)
    token = token_text()
    if not token and not _is_loopback(command.host):
        print(_NO_TOKEN.format(host=command.host), file=sys.stderr, flush=True)
    _set_up_process()
    failure: BaseException | None = None
    try:
        with check_sources(command) as sources:
            _warn_of_unused_flags(command, sources)
            if command.check_only:
                descriptions = "; ".join(_descriptions(command, sources))
                print(f"all checks passed: would serve {descriptions} at {_address(command, sources)}")
            else:
                failure = serve(command, sources, token or None)
    except UserError as error:
        failure = error
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
    return 0 if failure is None else 2


def _warn_of_unused_flags(command: ServeCommand, sources: ServedSources) -> None:
    """Print a warning to stderr if the user gave flags that have no effect on what is served, and for each
    index with fewer cells than --nprobe, all of which FAISS then searches."""
    for name, shards in sources.shards.items():
        cells = shards[0].manifest.dense and shards[0].manifest.dense.cells
        if cells and (command.search.nprobe or 0) > cells:
            text = f"--nprobe {command.search.nprobe}: {name} has {cells} cells: give at most {cells}"
            print(f"WARNING: {text}", file=sys.stderr, flush=True)
    has_vectors = any(shards[0].manifest.dense for shards in sources.shards.values())
    if unused := command.unused_flags(has_vectors=has_vectors):
        text = f"WARNING: {', '.join(unused)}: no effect on what is served here; leave them out"
        print(text, file=sys.stderr, flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _set_up_process() -> None:
    """Set how this process uses CPU and memory. Call it before anything imports torch or FAISS."""
    from retrieval_server.encode import cpu_settings, malloc

    malloc.limit_heaps()
    malloc.trim_heap_regularly()
    cpu_settings.set_switch_interval()
    cpu_settings.set_passive_wait()
    cpu_settings.set_mkl_reproducible()


def serve(command: ServeCommand, sources: ServedSources, token: str | None) -> BaseException | None:
    """Serve until a signal stops the server or an index fails to load. Returns the error in this case.

    Call it in the main thread, which alone can handle signals.
    """
    from retrieval_server.serve.app import make_app, server_config
    from retrieval_server.serve.process import ServerProcess

    on_ready = partial(_print_ready, command, sources)
    make = partial(make_app, command, sources, token, on_ready=on_ready)
    process = ServerProcess(lambda fail: server_config(command, make(on_load_failure=fail)))
    for description in _descriptions(command, sources):
        print(f"loading {description}", flush=True)
    process.run(sources.listener)
    return process.failure


def _print_ready(
    command: ServeCommand, sources: ServedSources, guarantees: Mapping[str, Determinism]
) -> None:
    """Print what each index guarantees, and then the address, which shows that the server is ready."""
    rerank = {} if sources.reranker is None else {"/rerank": sources.reranker.guarantee}
    for name, guarantee in {**guarantees, **rerank}.items():
        print(f"{name} guarantees {guarantee}: {guarantee.meaning}", flush=True)
    print(f"serving on {_address(command, sources)}", flush=True)


def _address(command: ServeCommand, sources: ServedSources) -> str:
    host = f"[{command.host}]" if ":" in command.host else command.host
    return f"http://{host}:{sources.listener.getsockname()[1]}"


def _descriptions(command: ServeCommand, sources: ServedSources) -> Iterator[str]:
    """Yield a description of each index and of the web engine, with the name under which it is served."""
    for name, folder in command.folders.items():
        shards = sources.shards[name]
        manifest = shards[0].manifest
        passages = sum(shard.manifest.count for shard in shards)
        details = f"{passages} passages, {manifest.backend}"
        if manifest.dense is not None:  # the folder chooses the model, so name it before it is loaded
            details += f", encoder {command.search.encoder or manifest.dense.encoder.name}"
        yield f"{name}={folder}: {details}"
    if sources.web is not None:
        yield f"{WEB}={command.web.web}: {sources.web.origin}"


if __name__ == "__main__":
    sys.exit(main(prog="python retrieval_server/start_retrieval.py"))
