"""Creates the tools of a configuration.

**The search engine** is the tool `search`; its options are under `rag_r1.retriever`. It is made by a factory
that takes these options (all but `tool`) and returns a tool with the argument `query`, or an object with one
coroutine, `search(queries) -> [documents or Failure, one entry for each query]` (`Searcher` in
function_tool.py). The shipped factory is `retrieval`; your own is named by its import path:

    rag_r1.retriever.tool: my_package.my_tool:make_searcher

A search that depends on more than its query, such as the question, is a tool with `reads_context = True`: it
is called as `call(arguments, context)` (`Tool` in rag_r1/agent/interfaces.py; `SearchTool` in
function_tool.py has its other parts).

**Further tools** are declared under `rag_r1.tools`, with the names by which the policy calls them; config.py
says how. How a policy writes a call is set by the protocol (protocols/blocks.py).

`schemas` describes the tools to a chat template that lists them in the prompt (`turns: chat`).

A tool is made once for each event loop and configuration and shared by all trajectories there, so it may hold
connections and caches. It is made by its first call, so that an error of its factory is a failure of that
call, which the tool executor handles (rag_r1/agent/tool_executor.py). If the factory raised, the next call
tries it again.
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

DEFAULT_TOOL = "retrieval"

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()


def make_searcher(config: dict[str, Any]) -> Any:
    """A new search tool from the keys under `rag_r1.retriever`. Raises ValueError naming the wrong key."""
    options = dict(config)
    path = options.pop("tool", None) or DEFAULT_TOOL
    if path == DEFAULT_TOOL:
        return RetrievalClient(RetrieverConfig.from_config(options))
    if (tool := as_tool(SEARCH, _factory(str(path))(options))) is None:
        raise ValueError(f"rag_r1.retriever.tool: {path!r} gives neither a tool nor a searcher")
    return tool


def shared_searcher(config: dict[str, Any]) -> Any:
    """The search tool of the running event loop for this configuration. Raises nothing; the first search
    raises what `make_searcher` does."""
    # Arguments are checked without the tool, so that an error of its factory is a failure of the call.
    make = partial(LazyTool, partial(make_searcher, config), fault=SearchTool.fault, checked=None)
    return _shared_object(config, make)


def shared_tools(retriever: Mapping[str, Any], tools: Mapping[str, ToolEntry]) -> dict[str, Any]:
    """The tools of the running event loop for this configuration, by name. Raises nothing."""

    def make() -> dict[str, Any]:
        entries = {name: LazyTool(partial(make_tool, name, entry)) for name, entry in tools.items()}
        return {SEARCH: shared_searcher(dict(retriever)), **entries}

    return _shared_object([dict(retriever), dict(tools)], make)


def _shared_object(config: Any, make: Callable[[], Any]) -> Any:
    """The object for this configuration in the running event loop, made by the first call."""
    by_config = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in by_config:
        by_config[key] = make()
    return by_config[key]


def schemas(tools: Mapping[str, ToolEntry], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The search and these tools as JSON schemas of functions, as chat templates take them.

    `names`: {name in a call: registered tool}, for tools that calls name otherwise. Each tool is made once
    for this; raises ValueError naming the key of one that cannot be made, and whatever its factory raises.
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
    """A tool that is made when one of its attributes is first read. An attribute that was read once is found
    directly from then on. `attributes`: those that do not need the tool. An error of `make` is raised to the
    reader, and the next one calls it again."""

    def __init__(self, make: Callable[[], Any], **attributes: Any):
        self._make, self._tool = make, None
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if self._tool is None:
            self._tool = self._make()
        value = getattr(self._tool, name)
        setattr(self, name, value)
        return value

    async def close(self) -> None:
        """Close the tool's connections, if it was made."""
        await _close(self._tool)


async def close_tools(tools: Mapping[str, Any]) -> None:
    """Close the connections of these tools, of the running event loop. A tool that is called again opens them
    again. One that cannot be closed is logged, and the others are closed all the same."""
    for name, tool in tools.items():
        try:
            await _close(tool)
        except Exception as error:  # a tool of the user's own may raise anything
            logger.warning("the tool %s could not be closed: %s", name, type(error).__name__)


async def _close(tool: Any) -> None:
    if callable(close := getattr(tool, "close", None)):
        await close()


def _factory(path: str) -> Callable[[dict[str, Any]], Any]:
    """The factory with this import path. Raises ValueError with the key and the remedy."""
    if ":" not in path:
        raise ValueError(
            f"rag_r1.retriever.tool: unknown tool {path!r}; use {DEFAULT_TOOL}, "
            "or the import path of your own factory, `package.module:factory`"
        )
    try:
        return import_object(path)
    except ImportPathError as error:
        raise ImportPathError(f"rag_r1.retriever.tool: {error}", error.remedy) from error
