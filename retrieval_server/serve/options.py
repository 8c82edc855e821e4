"""The options of `rag-r1 index serve`.

Options that contradict each other are refused, and so are recordings, parameters and the address of a web
engine without one, an encoder without a dense index, and options of Ray without `--serve ray` (`checks.py`).
Other options that have no effect, such as `--nprobe` without a dense index, are named in a warning
(`ServeCommand.unused_flags`). `command_line.py` makes the flags, the help and the error messages from this
declaration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from retrieval_server.cluster.ray_options import RayOptions
from retrieval_server.engine.options import EngineOptions
from retrieval_server.errors import UserError
from retrieval_server.options import AtLeastOne, Flag, Group, Options, given_flags
from retrieval_server.search.options import OpenOptions
from retrieval_server.server.limits import ConnectionLimits, RequestLimits
from retrieval_server.server.wire import DEFAULT_INDEX
from retrieval_server.web.options import WEB, WebSelection

_HOST_NAME = re.compile(r"\*|[A-Za-z0-9_.-]+")
_NAMED_FOLDER = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)


def _named_folder(text: str) -> tuple[str, Path]:
    """Return the name and the folder of NAME=DIR. DIR alone gets the name DEFAULT_INDEX.

    Raises ValueError for an empty DIR, which would be the working directory, and for an empty NAME.
    """
    match = _NAMED_FOLDER.fullmatch(text)
    name, folder = (match[1], match[2]) if match else (DEFAULT_INDEX, text)
    if not folder or (folder.startswith("=") and not Path(folder).exists()):
        raise ValueError(f"must be DIR or NAME=DIR, not {text!r}")
    return name, Path(folder)


def _host_name(text: str) -> str:
    """Return the name of a host, `.example.org` or `*`. Raises ValueError for anything else."""
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(f"must be a name alone, without scheme, port and path, not {text!r}")
    return text


class RerankOptions(Options):
    """A cross-encoder, and the number of passages that it scores."""

    group = Group("reranking by a cross-encoder")

    rerank: Annotated[
        str | None,
        Flag(
            "a cross-encoder, as a folder or Hugging Face name; it orders the best passages of every search "
            "of an index, and answers POST /rerank",
            metavar="NAME_OR_PATH",
        ),
    ] = None
    rerank_depth: Annotated[
        int,
        Field(ge=0),
        Flag(
            "passages of each search that the cross-encoder orders; a request gets at most so many; 0: it "
            "only answers /rerank",
            metavar="N",
        ),
    ] = 20


class LogOptions(Options):
    """The log's format and level, and whether it contains the text of queries."""

    group = Group("logs, on standard error")

    log_format: Annotated[Literal["text", "json"], Flag("json: one object a line, for machines")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        Flag(
            "least level that is written; from info on there is a line for each request (default: info with "
            "json or --log-queries, else warning)"
        ),
    ] = None
    log_queries: Annotated[
        bool, Flag("put the text of the queries into these lines (default: only their number)")
    ] = False

    @property
    def level(self) -> str:
        """The effective level: `log_level`, or its default, which depends on the other options."""
        if self.log_level is not None:
            return self.log_level
        return "info" if self.log_format == "json" or self.log_queries else "warning"

    def contradictions(self) -> Iterator[UserError]:
        """Yield an error if queries are to be logged in lines that are not written."""
        if self.log_queries and self.level in ("warning", "error"):
            text = f"--log-queries: with --log-level {self.level} requests have no lines; use info"
            yield UserError(text)


class ServeCommand(Options):
    """All options of `rag-r1 index serve`."""

    index: Annotated[
        tuple[tuple[str, Path], ...],
        Flag(
            "index folder made by `rag-r1 index build`. Give several with a name each, wiki=DIR: a request "
            'chooses one with "index": "wiki"; a request without a name gets the index without a name, or '
            "else the first",
            metavar="[NAME=]DIR",
            read=_named_folder,
        ),
    ] = ()
    reload_root: Annotated[
        Path | None,
        Flag(
            "the folder that POST /reload may open indexes and encoders from (default: the one that holds "
            "the index)",
            metavar="DIR",
        ),
    ] = None
    host: Annotated[
        str,
        Field(min_length=1),
        Flag("address to listen on; 127.0.0.1: this machine only; 0.0.0.0: the whole network"),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535), Flag("port; 0: any free one, which is printed")] = 8000
    topk: Annotated[AtLeastOne, Flag("passages for each query where the request names no topk")] = 3
    pages: Annotated[
        Path | None,
        Flag(
            'whole pages for POST /access: JSONL with "url" and "contents", read once at start',
            metavar="FILE",
        ),
    ] = None
    verify: Annotated[
        bool | None,
        Flag("compare the hashes of all index files with the manifest (default: up to 1 GiB of files)"),
    ] = None
    check_only: Annotated[
        bool, Flag("check the indexes, the encoder, the port and the rest, report all problems, and stop")
    ] = False
    search: OpenOptions = OpenOptions()
    rerank: RerankOptions = RerankOptions()
    limits: RequestLimits = RequestLimits()
    connections: ConnectionLimits = ConnectionLimits()
    allowed_host: Annotated[
        tuple[str, ...],
        Flag(
            "a name under which clients reach this server, beside addresses, localhost and the machine's own "
            "name: that of a proxy or of a cluster's service. May be given several times; .example.org: it "
            "and all below it; *: any",
            metavar="NAME",
            read=_host_name,
            group=ConnectionLimits.group,
        ),
    ] = ()
    serve: Annotated[
        Literal["here", "ray"],
        Flag(
            "where indexes are searched: here, in this process, or on a Ray cluster", group=RayOptions.group
        ),
    ] = "here"
    ray: RayOptions = RayOptions()
    engine: EngineOptions = EngineOptions()
    web: WebSelection = WebSelection()
    logs: LogOptions = LogOptions()

    @property
    def folders(self) -> dict[str, Path]:
        """The index folders by name, the default index first."""
        return dict(sorted(self.index, key=lambda item: item[0] != DEFAULT_INDEX))

    def unused_flags(self, *, has_vectors: bool) -> list[str]:
        """Return the flags that were given and have no effect.

        `has_vectors` says whether a dense index is served, or a hybrid of one.
        """
        unused = {
            "search": not has_vectors or self.search.backend is not None,
            "rerank": self.rerank.rerank is None,
            "web": self.web.web is None,
        }
        flags = given_flags(self, [name for name, is_unused in unused.items() if is_unused])
        # An --encoder without a dense index is refused (checks.py), and a cross-encoder has the --device too.
        used = {"--backend", *(["--device"] if self.rerank.rerank else [])}
        used |= set() if self.search.backend else {"--encoder"}
        return [flag for flag in flags if flag not in used]

    def contradictions(self) -> Iterator[UserError]:
        """Yield an error for each problem of sources and limits, which names the flags and the remedy."""
        names = [name for name, _ in self.index]
        if self.web.web is None and not names:
            text = "give an index, --index DIR, or a web search engine, --web ENGINE"
            yield UserError(text, "--index", "--web")
        if self.web.web is not None and WEB in names:
            text = f"--index {WEB}=DIR: with --web this name is the web engine's; choose another"
            yield UserError(text)
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            folders = ", ".join(str(folder) for other, folder in self.index if other == name)
            yield UserError(
                f"--index: two indexes are named {name!r} ({folders}); give each another name, NAME=DIR, of "
                "letters, digits, '_', '.' and '-'"
            )
        limits = self.limits
        depth = self.rerank.rerank_depth
        if self.rerank.rerank and 0 < depth < self.topk:
            text = f"--topk {self.topk} is above --rerank-depth {depth}: lower it, or raise the depth"
            yield UserError(text, "--topk", "--rerank-depth")
        queue, queries = self.engine.max_queue, limits.max_queries
        if queue < queries:
            text = f"--max-queue {queue} is below --max-queries {queries}: raise it, or lower --max-queries"
            yield UserError(text, "--max-queue", "--max-queries")
        if self.topk > limits.max_topk:
            text = f"--topk {self.topk} is above --max-topk {limits.max_topk}: lower it, or raise --max-topk"
            yield UserError(text, "--topk", "--max-topk")
