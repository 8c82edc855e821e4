"""The flags of start_retrieval.py for web search engines."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_server.web.engines import ENGINES
from retrieval_server.web.options import WebOptions

if TYPE_CHECKING:
    from retrieval_server.web.source import WebSource

#: The name under which a web engine is served beside indexes.
WEB = "web"


def add_web_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--web`` and what goes with it."""
    defaults = WebOptions()
    keys = ", ".join(
        f"{name}: {engine.key_variable or engine.url_variable}" for name, engine in ENGINES.items()
    )
    web = parser.add_argument_group(
        "web search",
        "Ask a search engine, in the same wire. Keys come from the environment "
        f"({keys}). Answers can be recorded, and a recorded run replayed at no cost and to the byte: "
        "--record run.jsonl the first time, --replay run.jsonl ever after.",
    )
    web.add_argument(
        "--web",
        choices=list(ENGINES),
        help="the engine, in place of --index; or beside it: a "
        'request that says "index": "web" is answered by the engine',
    )
    web.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="append every answer to this new JSONL file; with --replay FILE the file may exist: what is "
        "in it is used, the rest is asked for and recorded",
    )
    web.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="answer from this recording; without --record nothing is asked, no key is needed, and a query "
        "that is not in it gets 404 not_recorded",
    )
    web.add_argument(
        "--web-concurrency",
        type=int,
        default=defaults.concurrency,
        metavar="N",
        help="queries with the engine at one time (default %(default)s)",
    )
    web.add_argument(
        "--web-timeout",
        type=float,
        default=defaults.timeout_s,
        metavar="SECONDS",
        help="for one attempt (default %(default)s)",
    )
    web.add_argument(
        "--web-retries",
        type=int,
        default=defaults.retries,
        metavar="N",
        help="further attempts after 429, 5xx or no answer (default %(default)s)",
    )
    web.add_argument(
        "--web-param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the engine's own API, such as gl=us (serper) or search_depth=advanced (tavily); "
        "may be given several times; part of what an answer is recorded under",
    )
    web.add_argument(
        "--web-url",
        metavar="URL",
        help="another address of the same API, such as a gateway; it is sent the key",
    )


def check_web_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, in argparse's way."""
    if args.web is None and not args.index:
        parser.error("give an index, --index DIR, or a web search engine, --web ENGINE")
    if args.web is not None and any(name == WEB for name, _ in args.index):
        parser.error(f"--index {WEB}=DIR: with --web this name is the web engine's; choose another")
    if args.web is None:
        for name in ("record", "replay", "web_param", "web_url"):
            if getattr(args, name):
                parser.error(f"--{name.replace('_', '-')} belongs to --web ENGINE")
    if args.web_concurrency < 1:
        parser.error("--web-concurrency must be at least 1")
    if args.web_retries < 0:
        parser.error("--web-retries must be at least 0")
    if not 0 < args.web_timeout < float("inf"):
        parser.error("--web-timeout must be above 0 seconds")
    for pair in args.web_param:
        if "=" not in pair.lstrip("="):
            parser.error(f"--web-param {pair}: write NAME=VALUE")


def open_web(args: argparse.Namespace) -> WebSource:
    """The source that the flags ask for. Raises WebEngineError or RecordingError."""
    from retrieval_server.web.source import WebSource  # with it comes the HTTP client

    read = _json_or_text if ENGINES[args.web].method == "POST" else str
    params = {name: read(value) for name, _, value in (pair.partition("=") for pair in args.web_param)}
    options = WebOptions(
        concurrency=args.web_concurrency,
        timeout_s=args.web_timeout,
        retries=args.web_retries,
        params=params,
    )
    return WebSource.open(
        args.web, os.environ, options, url=args.web_url, replay=args.replay, record=args.record
    )


def _json_or_text(value: str) -> object:
    """In a JSON body ``true``, ``3`` and ``["a.org"]`` mean what they look like."""
    try:
        return json.loads(value)
    except ValueError:
        return value
