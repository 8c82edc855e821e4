"""The tools that a policy can call, made from the configuration.

**The search engine** is the tool `search`; its options are under `rag_r1.retriever`. It is made by a factory
that takes these options (all but `tool`) and returns an object with one coroutine, `search(queries) ->
[documents or Failure, one entry for each query]` (`Searcher` in function_tool.py). The shipped factory is
`retrieval`; your own is named by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

**Further tools** are declared under `rag_r1.tools`, with the names by which the policy calls them:

    rag_r1:
      tools:
        calculator: my_package.my_tools:calculator
        wiki: {tool: "my_package.my_tools:make_wiki", language: fr}

The import path names a tool (`@tool`, see function_tool.py), or a factory that takes the other options and
returns a tool or a Searcher. How a policy writes a call is set by the protocol (protocols/blocks.py).

`schemas` describes the tools to a chat template that lists them in the prompt (`turns: chat`).

A tool is made once for each event loop and configuration and shared by all trajectories there, so it may hold
connections and caches. It is made by its first call, so that an error of its factory is a failure of that
call, which the episode's guard handles (agent/guard.py). If the factory raised, the next call tries it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rag_r1.import_path import ImportPathError, imported
from rag_r1.protocols import SEARCH, Document, Failure
from rag_r1.tools.function_tool import SearcherTool, searching
from rag_r1.tools.retrieval import RetrievalClient, RetrieverConfig

DEFAULT_TOOL = "retrieval"

_tools: dict[str, Callable[[dict[str, Any]], Any]] = {
    DEFAULT_TOOL: lambda options: RetrievalClient(RetrieverConfig.from_config(options)),
}
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()

#: An import path, or a mapping with `tool` and the options of a factory.
ToolEntry = str | Mapping[str, Any]


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
        searchers[key] = _MadeWhenAsked(config)
    return searchers[key]


def make_tool(name: str, entry: ToolEntry) -> Any:
    """A new tool from an entry of `rag_r1.tools`. Raises ValueError naming the key, and whatever the
    factory raises."""
    key = f"rag_r1.tools.{name}"
    if name == SEARCH:
        raise ValueError(f"{key}: the name is used by the search engine; its options are rag_r1.retriever")
    if not isinstance(entry, str | Mapping):
        raise ValueError(f"{key} must be an import path or {{tool, ...options}}, not {entry!r}")
    options = {"tool": entry} if isinstance(entry, str) else dict(entry)
    path = options.pop("tool", None)
    if not isinstance(path, str) or ":" not in path:
        raise ValueError(f"{key}.tool must be an import path, `package.module:name`, not {path!r}")
    try:
        found = imported(path)
    except ImportPathError as error:
        raise ImportPathError(f"{key}: {error}", error.remedy) from error
    if not _is_tool(found):
        found = found(options)
    elif options:
        raise ValueError(f"{key}: {path!r} is a tool and takes no options; found {', '.join(options)}")
    if hasattr(found, "search") and not _is_tool(found):
        found = SearcherTool(name, found)
    if not _is_tool(found):
        raise ValueError(f"{key}: {path!r} gives neither a tool nor a searcher, but {type(found).__name__}")
    return found


def shared_tools(retriever: Mapping[str, Any], tools: Mapping[str, ToolEntry]) -> dict[str, Any]:
    """The tools of the running event loop for this configuration, by name. Raises nothing."""
    shared = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([dict(retriever), dict(tools)], sort_keys=True, default=str)
    if key not in shared:
        made: dict[str, Any] = dict(searching(shared_searcher(dict(retriever))))
        shared[key] = made | {name: _MadeWhenCalled(name, entry) for name, entry in tools.items()}
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


def _is_tool(thing: Any) -> bool:
    return all(hasattr(thing, name) for name in ("call", "fault", "parameters")) and not isinstance(
        thing, type
    )


class _MadeWhenCalled:
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

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        return self._tool().fault(arguments)

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Document] | Failure]:
        return await self._tool().call(arguments)


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
