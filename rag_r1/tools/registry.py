"""Which tool answers a search.

A tool is a factory that takes the options under `rag_r1.retriever` (all but `tool`) and returns an object
with one coroutine, `search(queries) -> [documents or Failure, one entry a query]` (the agent core's
`Searcher`). The shipped one is `retrieval`; your own is named by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

One searcher is made for each event loop and configuration and shared by all trajectories there, so it may
hold connections and caches. It is made by the first search: whatever the factory or the searcher does wrong
then happens within that search, and the episode, which calls it, types it (agent/loop.py). A factory that
raised is asked again by the next search.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rag_r1.import_path import ImportPathError, imported
from rag_r1.protocols import Document, Failure
from rag_r1.tools.retrieval import RetrievalClient, RetrieverConfig

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
    """The searcher of the running event loop for this configuration. Making it raises nothing; its first
    search raises what `make_searcher` does."""
    searchers = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in searchers:
        searchers[key] = _MadeWhenAsked(config)
    return searchers[key]


class _MadeWhenAsked:
    """A searcher that is made by its first search."""

    def __init__(self, config: dict[str, Any]):
        self.config = config
        self.searcher: Any = None

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]:
        if self.searcher is None:
            self.searcher = make_searcher(self.config)
        return await self.searcher.search(queries)


def _import(name: str) -> Callable[[dict[str, Any]], Any]:
    if ":" not in str(name):
        raise ValueError(
            f"rag_r1.retriever.tool: unknown tool {name!r}; use one of {', '.join(sorted(_tools))}, "
            "or the import path of your own factory, `package.module:factory`"
        )
    try:
        return imported(str(name))
    except ImportPathError as error:
        raise ImportPathError(f"rag_r1.retriever.tool: {error}", error.remedy) from error
