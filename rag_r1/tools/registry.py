"""Which tool answers a search.

A tool is a factory that takes the options under `rag_r1.retriever` (all but `tool`) and returns an object
with one coroutine, `search(queries) -> [documents or Failure, one entry a query]` (the agent core's
`Searcher`). The shipped one is `retrieval`; your own is named by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

One searcher is made for each event loop and configuration and shared by all trajectories there, so it may
hold connections and caches. Whatever it raises, and an answer that does not fit the queries, becomes a
Failure for each query of that turn: a tool's fault is shown to the policy in one bounded sentence and never
ends a run.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rag_r1.protocols import Document, Failure
from rag_r1.tools.retrieval import FAILURE_TEXT, RetrievalClient, RetrieverConfig

logger = logging.getLogger(__name__)

DEFAULT_TOOL = "retrieval"

_tools: dict[str, Callable[[dict[str, Any]], Any]] = {
    DEFAULT_TOOL: lambda options: RetrievalClient(RetrieverConfig.from_config(options)),
}
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()


def make_searcher(config: dict[str, Any]) -> Any:
    """A new searcher from the keys under `rag_r1.retriever`. Raises ValueError naming the wrong key."""
    options = dict(config)
    name = options.pop("tool", None) or DEFAULT_TOOL
    factory = _tools.get(name) or _import(name)
    return factory(options)


def shared_searcher(config: dict[str, Any]) -> Any:
    """The searcher of the running event loop for this configuration; made at first use."""
    searchers = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in searchers:
        searchers[key] = _Guarded(make_searcher(config))
    return searchers[key]


class _Guarded:
    """A searcher that answers with Failures where the one inside raises or answers with the wrong shape."""

    def __init__(self, searcher: Any):
        self.searcher = searcher

    async def search(self, queries: Sequence[str]) -> list[list[Document] | Failure]:
        try:
            results = list(await self.searcher.search(queries))
            if len(results) != len(queries):
                raise ValueError(f"{len(results)} results for {len(queries)} queries")
            return [r if isinstance(r, Failure) else _documents(r) for r in results]
        except (
            Exception
        ) as error:  # a tool is foreign code: this is the boundary at which its failures are typed
            logger.warning("the tool %s failed: %r", type(self.searcher).__name__, error)
            return [Failure(FAILURE_TEXT, "tool", f"{type(error).__name__}: {error}"[:200])] * len(queries)


def _documents(result: Any) -> list[Document]:
    documents = list(result)
    if not all(isinstance(document, Document) for document in documents):
        raise TypeError("a result must be a list of Document, or a Failure")
    return documents


def _import(name: str) -> Callable[[dict[str, Any]], Any]:
    module, _, attribute = str(name).partition(":")
    if not attribute:
        raise ValueError(
            f"rag_r1.retriever.tool: unknown tool {name!r}; use one of {', '.join(sorted(_tools))}, "
            "or the import path of your own factory, `package.module:factory`"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"rag_r1.retriever.tool: cannot import {name!r}: {error}") from error
