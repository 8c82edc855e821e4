"""Creates the tools and the searcher of a configuration.

**The search engine** is the tool `search`; its options are under `rag_r1.retriever`. It is made by a factory
that takes these options (all but `tool`) and returns an object with one coroutine, `search(queries) ->
[documents or Failure, one entry for each query]` (`Searcher` in function_tool.py). The shipped factory is
`retrieval`; your own is named by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

**Further tools** are declared under `rag_r1.tools`, with the names by which the policy calls them; config.py
says how. How a policy writes a call is set by the protocol (protocols/blocks.py).

`schemas` describes the tools to a chat template that lists them in the prompt (`turns: chat`).

A tool is made once for each event loop and configuration and shared by all trajectories there, so it may hold
connections and caches. It is made by its first call, so that an error of its factory is a failure of that
call, which the episode's guard handles (rag_r1/agent/tool_executor.py). If the factory raised, the next call
tries it again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rag_r1.options.import_path import ImportPathError, import_object
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import SEARCH, Document, Failure, Refusal
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools.config import ToolEntry, make_tool
from rag_r1.tools.function_tool import SearcherTool, checked_fault, search_tools, sent_arguments
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

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
    """The searcher of the running event loop for this configuration. Raises nothing; the first search raises
    what `make_searcher` does."""
    searchers = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in searchers:
        searchers[key] = _LazySearcher(config)
    return searchers[key]


def shared_tools(retriever: Mapping[str, Any], tools: Mapping[str, ToolEntry]) -> dict[str, Any]:
    """The tools of the running event loop for this configuration, by name. Raises nothing."""
    shared = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([dict(retriever), dict(tools)], sort_keys=True, default=str)
    if key not in shared:
        made: dict[str, Any] = dict(search_tools(shared_searcher(dict(retriever))))
        shared[key] = made | {name: _LazyTool(name, entry) for name, entry in tools.items()}
    return shared[key]


def schemas(tools: Mapping[str, ToolEntry], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The search and these tools as JSON schemas of functions, as chat templates take them.

    `names`: {name in a call: registered tool}, for tools that calls name otherwise. Each tool is made once
    for this; raises ValueError naming the key of one that cannot be made, and whatever its factory raises.
    """
    called = {tool: name for name, tool in (names or {}).items()}
    found: dict[str, Any] = {SEARCH: SearcherTool} | {name: make_tool(name, tools[name]) for name in tools}
    return [
        {
            "type": "function",
            "function": {
                "name": called.get(name, name),
                "description": one.description,
                "parameters": dict(one.parameters),
            },
        }
        for name, one in found.items()
    ]


class _LazyTool:
    """A tool that is made on first use."""

    def __init__(self, name: str, entry: ToolEntry):
        self.name, self.entry = name, entry
        self.made: Any = None

    def _tool(self) -> Any:
        if self.made is None:
            self.made = make_tool(self.name, self.entry)
        return self.made

    @property
    def description(self) -> str:
        return self._tool().description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._tool().parameters

    @property
    def limits(self) -> ToolLimits | None:
        return getattr(self._tool(), "limits", None)

    @property
    def together(self) -> bool:
        return getattr(self._tool(), "together", True)

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        return self._tool().fault(arguments)

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        return await checked_fault(self._tool(), arguments)

    async def call(
        self, arguments: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[Document] | Failure | Refusal]:
        return await self._tool().call(arguments)

    async def in_context(
        self, arguments: Sequence[Mapping[str, Any]], context: Context
    ) -> Sequence[Mapping[str, Any]] | Failure:
        return await sent_arguments(self._tool(), arguments, context)

    async def close(self) -> None:
        await _close(self.made)


async def close_tools(tools: Mapping[str, Any]) -> None:
    """Close the connections of these tools, of the running event loop. A tool that is called again opens them
    again. One that cannot be closed is logged, and the others are closed all the same."""
    for name, tool in tools.items():
        try:
            await _close(tool)
        except Exception as error:  # a tool of the user's own may raise anything
            logger.warning("the tool %s could not be closed: %s", name, type(error).__name__)


async def _close(thing: Any) -> None:
    if callable(close := getattr(thing, "close", None)):
        await close()


class _LazySearcher:
    """A searcher that is made by its first search."""

    def __init__(self, config: dict[str, Any]):
        self.config = config
        self.searcher: Any = None

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]:
        if self.searcher is None:
            self.searcher = make_searcher(self.config)
        return await self.searcher.search(queries)

    async def in_context(self, queries: Sequence[str], context: Context) -> Sequence[str] | Failure:
        if self.searcher is None:
            self.searcher = make_searcher(self.config)
        return await sent_arguments(self.searcher, queries, context)

    async def close(self) -> None:
        await _close(self.searcher)


def _import(name: str) -> Callable[[dict[str, Any]], Any]:
    if ":" not in str(name):
        raise ValueError(
            f"rag_r1.retriever.tool: unknown tool {name!r}; use one of {', '.join(sorted(_tools))}, "
            "or the import path of your own factory, `package.module:factory`"
        )
    try:
        return import_object(str(name))
    except ImportPathError as error:
        raise ImportPathError(f"rag_r1.retriever.tool: {error}", error.remedy) from error
