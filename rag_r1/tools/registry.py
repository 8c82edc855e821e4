"""Creates the tools of a configuration, and shares them among the trajectories of a process.

**The search engine** is the tool `search`; its options are under `rag_r1.retriever`. A factory takes these
options, without `tool`, and returns either a tool with the argument `query` or a `Searcher`: an object with
one coroutine, `search(queries)`, which returns a result for each query (function_tool.py). The shipped
factory is `retrieval`; name your own by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

A search that depends on more than the query, such as the question, is a tool with `reads_context = True`,
which is called as `call(arguments, context)` (`Tool` in rag_r1/agent/interfaces.py). `SearchTool` in
function_tool.py is a base class for it.

**Further tools** are declared under `rag_r1.tools` by the names with which the policy calls them (config.py).
The protocol says how the policy writes a call (protocols/blocks.py). `schemas` describes the tools to a chat
template that lists them in the prompt (`turns: chat`).

There is one tool for each event loop and configuration, which may hold connections and caches. It is created
by its first call, so an error of its factory is a failure of that call, which the tool executor handles
(rag_r1/agent/tool_executor.py). The next call then tries the factory again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from rag_r1.options.import_path import ImportPathError, import_object
from rag_r1.protocols import SEARCH
from rag_r1.tools.config import ToolEntry, make_tool
from rag_r1.tools.function_tool import SearchTool, as_tool
from rag_r1.tools.retrieval.client import RetrievalClient, RetrieverConfig

logger = logging.getLogger(__name__)

#: The search tool unless `rag_r1.retriever.tool` names another one.
DEFAULT_TOOL = "retrieval"

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()


def make_searcher(config: dict[str, Any]) -> Any:
    """Return a new search tool from the keys under `rag_r1.retriever`. Raises ValueError, which names the
    wrong key, and whatever the user's own factory raises."""
    options = dict(config)
    path = options.pop("tool", None) or DEFAULT_TOOL
    if path == DEFAULT_TOOL:
        return RetrievalClient(RetrieverConfig.from_config(options))
    if (tool := as_tool(SEARCH, _factory(str(path))(options))) is None:
        raise ValueError(f"rag_r1.retriever.tool: {path!r} gives neither a tool nor a searcher")
    return tool


def shared_searcher(config: dict[str, Any]) -> Any:
    """Return the search tool of the running event loop for this configuration. Errors of `make_searcher` are
    raised by the first search, not here."""
    # Arguments are checked without creating the tool, so that an error of its factory is a failure of the
    # call.
    make = partial(LazyTool, partial(make_searcher, config), fault=SearchTool.fault, checked=None)
    return _shared_object(config, make)


def shared_tools(retriever: Mapping[str, Any], tools: Mapping[str, ToolEntry]) -> dict[str, Any]:
    """Return the tools of the running event loop for this configuration, by name. Errors of `make_tool` are
    raised by the first call of the tool, not here."""

    def make() -> dict[str, Any]:
        entries = {name: LazyTool(partial(make_tool, name, entry)) for name, entry in tools.items()}
        return {SEARCH: shared_searcher(dict(retriever)), **entries}

    return _shared_object([dict(retriever), dict(tools)], make)


def _shared_object(config: Any, make: Callable[[], Any]) -> Any:
    """Return the object for this configuration in the running event loop, which the first call creates."""
    by_config = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in by_config:
        by_config[key] = make()
    return by_config[key]


def schemas(tools: Mapping[str, ToolEntry], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the JSON schemas of the search and of these tools, in the form that chat templates expect.

    `names` has the name in calls -> the name under `rag_r1.tools`, for tools whose names differ. Each tool is
    created for this. Raises ValueError, which names the key of a tool that cannot be created, and whatever
    its factory raises.
    """
    name_in_call = {tool: name for name, tool in (names or {}).items()}
    all_tools: dict[str, Any] = {SEARCH: SearchTool} | {name: make_tool(name, tools[name]) for name in tools}
    return [
        {
            "type": "function",
            "function": {
                "name": name_in_call.get(name, name),
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for name, tool in all_tools.items()
    ]


class LazyTool:
    """A tool that is created when one of its attributes is first read, except for `attributes`, which are
    known without it. If `make` raises, so does the access to the attribute, and the next access calls it
    again."""

    def __init__(self, make: Callable[[], Any], **attributes: Any):
        self._make, self._tool = make, None
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if self._tool is None:
            self._tool = self._make()
        value = getattr(self._tool, name)
        if callable(value):  # from now on it is found without this method; a text such as `index` may change
            setattr(self, name, value)
        return value

    async def close(self) -> None:
        """Close the connections of the tool, if it was created."""
        await _close(self._tool)


async def close_tools(tools: Mapping[str, Any]) -> None:
    """Close the connections of these tools, which belong to the running event loop. A later call opens them
    again. An error of one tool is logged, and the others are still closed."""
    for name, tool in tools.items():
        try:
            await _close(tool)
        except Exception as error:  # a user's tool may raise anything
            logger.warning("the tool %s could not be closed: %s", name, type(error).__name__)


async def _close(tool: Any) -> None:
    """Close the connections of a tool, if it has any. Raises what its `close` raises."""
    if callable(close := getattr(tool, "close", None)):
        await close()


def _factory(path: str) -> Callable[[dict[str, Any]], Any]:
    """Return the factory with this import path. Raises ValueError, with the key and the remedy."""
    if ":" not in path:
        raise ValueError(
            f"rag_r1.retriever.tool: unknown tool {path!r}; use {DEFAULT_TOOL}, "
            "or the import path of your own factory, `package.module:factory`"
        )
    try:
        return import_object(path)
    except ImportPathError as error:
        raise ImportPathError(f"rag_r1.retriever.tool: {error}", error.remedy) from error
