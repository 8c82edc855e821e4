"""The flags of start_retrieval.py, and what they say of each other."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from retrieval_server.cluster.ray_options import add_ray_flags
from retrieval_server.engine.batching import EngineOptions
from retrieval_server.server.connections import ConnectionLimits
from retrieval_server.server.wire import DEFAULT_INDEX, Limits
from retrieval_server.web.flags import add_web_flags, check_web_flags

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


def _index(text: str) -> tuple[str, Path]:
    named = _NAMED.fullmatch(text)
    return (named[1], Path(named[2])) if named else (DEFAULT_INDEX, Path(text))


def parse_args(description: str, argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed flags; ends the process with status 2 and a sentence where they do not fit.

    ``index`` is a dictionary of names and folders, the default one first.
    """
    limits, options, connections = Limits(), EngineOptions(), ConnectionLimits()
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--index",
        type=_index,
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="index folder made by build_index.py. Give several with a name each, wiki=DIR: a request says "
        '"index": "wiki"; where it names none, the one without a name answers, or else the first',
    )
    parser.add_argument(
        "--reload-root",
        type=Path,
        metavar="DIR",
        help="the folder that POST /reload may open indexes and encoders from (default: the one that holds "
        "the index)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default %(default)s, this machine only; 0.0.0.0: the whole network)",
    )
    parser.add_argument("--port", type=int, default=8000, help="port (default %(default)s)")
    parser.add_argument(
        "--topk",
        type=int,
        default=3,
        help="passages a query where the request names no topk (default %(default)s)",
    )
    parser.add_argument(
        "--encoder",
        metavar="NAME_OR_PATH",
        help="where the encoder of the indexes lies now, if it was moved since the build",
    )
    parser.add_argument(
        "--device", help="cpu, cuda, cuda:1, ... for the encoder (default: a GPU if torch sees one)"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        default="float32",
        help="what the encoder computes in; the 16-bit types are for GPUs, on a CPU they are slower "
        "(default %(default)s)",
    )
    faiss = parser.add_argument_group("search of a FAISS index")
    faiss.add_argument(
        "--nprobe", type=int, metavar="N", help="IVF: cells looked into (default: the manifest's)"
    )
    faiss.add_argument(
        "--ef-search", type=int, metavar="N", help="HNSW: length of the candidate list (default: likewise)"
    )
    faiss.add_argument(
        "--gpu",
        choices=["auto", "off", "on"],
        default="auto",
        help="search on all GPUs that faiss-gpu sees, a shard each; on: or not at all (default %(default)s)",
    )
    faiss.add_argument("--gpu-fp16", action="store_true", help="16-bit vectors on the GPU: half the memory")
    faiss.add_argument(
        "--mmap",
        action="store_true",
        help="search the index file where it lies, mapped, instead of reading it into memory: starts at once "
        "and shares its pages with other servers; what does not fit into memory is read for every batch",
    )
    rerank = parser.add_argument_group("reranking by a cross-encoder")
    rerank.add_argument(
        "--rerank",
        metavar="NAME_OR_PATH",
        help="a cross-encoder, as a folder or Hugging Face name; it orders the first passages of every "
        "search of an index, and is what POST /rerank uses",
    )
    rerank.add_argument(
        "--rerank-depth",
        type=int,
        default=20,
        metavar="N",
        help="passages of each search that it puts in order, the most that a request gets; 0: only /rerank "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--pages",
        type=Path,
        metavar="FILE",
        help='whole pages for POST /access: JSONL with "url" and "contents" (read once at start)',
    )
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="compare the hashes of all index files with the manifest (default: up to 1 GiB of files)",
    )
    parser.add_argument(
        "--max-queries",
        type=int,
        default=limits.max_queries,
        help="queries in one request (default %(default)s)",
    )
    parser.add_argument(
        "--max-query-chars",
        type=int,
        default=limits.max_query_chars,
        help="characters in a query (default %(default)s)",
    )
    parser.add_argument(
        "--max-topk",
        type=int,
        default=limits.max_topk,
        help="largest topk of a request (default %(default)s)",
    )
    who = parser.add_argument_group("who may connect (docs/security.md)")
    who.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which clients reach this server, beside addresses, localhost and the machine's "
        "own name: that of a proxy or of a cluster's service. Several times if need be; .example.org: it and "
        "all below it; *: any",
    )
    who.add_argument(
        "--max-connections",
        type=int,
        default=connections.max_connections,
        metavar="N",
        help="connections at once; more get 503 (default %(default)s: 4096, or what ulimit -n leaves)",
    )
    who.add_argument(
        "--read-timeout",
        type=float,
        default=connections.read_timeout_s,
        metavar="SECONDS",
        help="a request's headers, and again its body, must have arrived by then (default %(default)g)",
    )
    add_ray_flags(parser)
    batching = parser.add_argument_group("batching of the queries of all requests")
    batching.add_argument(
        "--max-batch",
        type=int,
        default=options.max_batch,
        help="queries in a batch; 1: each alone (default %(default)s)",
    )
    batching.add_argument(
        "--max-wait-ms",
        type=float,
        default=options.max_wait_ms,
        help="milliseconds without a new query after which a batch that could be larger starts all the same; "
        "a client that is alone never waits (default %(default)s)",
    )
    batching.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=options.overlap,
        help="encode one batch while another is searched (default: unless both happen on the CPU, where the "
        "two would take the cores from each other)",
    )
    batching.add_argument(
        "--cache-size",
        type=int,
        default=options.cache_size,
        help="answers to remember, least recently used go first; 0: none (default %(default)s)",
    )
    batching.add_argument(
        "--single-flight",
        action=argparse.BooleanOptionalAction,
        default=options.single_flight,
        help="compute equal queries that are under way once (default: yes)",
    )
    batching.add_argument(
        "--max-queue",
        type=int,
        default=options.max_queue,
        help="queries accepted and not yet answered; a request that does not fit gets 503 with Retry-After "
        "at once (default %(default)s; at least --max-queries)",
    )
    batching.add_argument(
        "--deadline",
        type=float,
        default=options.deadline_s,
        metavar="SECONDS",
        help="a request that is not answered by then gets 504, one that would not be gets 503 at once "
        "(default %(default)s)",
    )
    batching.add_argument(
        "--max-delay",
        type=float,
        metavar="SECONDS",
        help="a request that would be answered later than this, at the present pace, gets 503 with "
        "Retry-After at once, unless nothing else is under way (default: as --deadline)",
    )
    add_web_flags(parser)
    logs = parser.add_argument_group("logs, on standard error")
    logs.add_argument(
        "--log-format",
        default="text",
        choices=["text", "json"],
        help="json: one object a line, for machines (default %(default)s)",
    )
    logs.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="from info on there is a line for each request (default: info with json or --log-queries, else "
        "warning)",
    )
    logs.add_argument(
        "--log-queries",
        action="store_true",
        help="put the words of the queries into these lines (default: only how many there are)",
    )
    args = parser.parse_args(argv)
    check_web_flags(parser, args)
    at_least = dict.fromkeys(
        ("topk", "max_queries", "max_query_chars", "max_topk", "max_batch", "max_connections"), 1
    )
    for name, least in (at_least | {"max_wait_ms": 0, "cache_size": 0, "rerank_depth": 0}).items():
        if not getattr(args, name) >= least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    for name in ("nprobe", "ef_search"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.rerank and 0 < args.rerank_depth < args.topk:
        parser.error(f"--topk {args.topk} is above --rerank-depth {args.rerank_depth}")
    for name in ("deadline", "read_timeout"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0 seconds")
    if args.max_delay is not None and not args.max_delay > 0:
        parser.error("--max-delay must be above 0 seconds")
    if args.max_queue < args.max_queries:
        parser.error(
            f"--max-queue {args.max_queue} is below --max-queries {args.max_queries}: a request of that many "
            "queries would never be accepted; lower --max-queries too"
        )
    if args.topk > args.max_topk:
        parser.error(f"--topk {args.topk} is above --max-topk {args.max_topk}")
    if args.log_level is None:
        args.log_level = "info" if args.log_format == "json" or args.log_queries else "warning"
    if args.log_queries and args.log_level in ("warning", "error"):
        parser.error(f"--log-queries: with --log-level {args.log_level} requests have no lines; use info")
    names = [name for name, _ in args.index]
    for name in names:
        if names.count(name) > 1:
            parser.error(f"--index: two indexes of the name {name!r}; give each a name of its own, NAME=DIR")
    args.index = dict(sorted(args.index, key=lambda item: item[0] != DEFAULT_INDEX))
    return args
