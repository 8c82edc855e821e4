"""Makes a tool from an async function or from a searcher.

    @tool("Adds two numbers.", {"a": {"type": "number"}, "b": {"type": "number"}})
    async def add(a: float, b: float) -> str:
        return str(a + b)

The second argument of `tool` has the properties of a JSON schema, or is a whole schema. All properties are
required unless `required` lists those that are. `limits` sets a time limit, retries, calls per episode and a
cache (rag_r1/options/tool_limits.py).

Arguments are checked against the schema before the function is called, so a mistake of the policy never
reaches it. The function returns a text, which is neutralised, cut to 20,000 characters and otherwise shown
unchanged; a list of Document, shown in the protocol's format; or a Refusal, which says what is wrong with
arguments that the schema allows. If it raises, only that call fails.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutinefunction, isfunction
from typing import Any
from typing import Protocol as Interface

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import SEARCH, Document, Failure, Refusal, text_result
from rag_r1.protocols.actions import failure_text
from rag_r1.tools.argument_validator import MAX_SCHEMA_CHARS, ArgumentValidator

#: Most characters of a text that a tool returns. Usually the budget of the observation is lower.
MAX_RESULT_CHARS = 20_000

Function = Callable[..., Awaitable["str | Sequence[Document] | Refusal"]]


def schema_of(parameters: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the JSON schema of an object with these properties; a whole schema of an object is returned
    unchanged. `required` has the names that a call must have, by default all. Raises jsonschema's SchemaError
    if the schema is wrong or too large, or if `required` has other names or stands beside a whole schema, and
    TypeError if a key cannot be one in JSON, such as a date."""
    is_whole = parameters.get("type") == "object"
    if required is not None and (is_whole or set(required) - set(parameters)):
        raise SchemaError(
            f"`required` must name properties, and a whole schema has its own; found {list(required)}"
        )
    if is_whole:
        schema = dict(parameters)
    else:
        names = list(parameters if required is None else required)
        schema = {"type": "object", "properties": dict(parameters), "required": names}
        schema["additionalProperties"] = False
    if len(json.dumps(schema, default=str)) > MAX_SCHEMA_CHARS:
        raise SchemaError(f"it has more than {MAX_SCHEMA_CHARS >> 10} KiB")
    Draft202012Validator.check_schema(schema)
    return schema


def named_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call with the names that the schema has.

    A syntax in which arguments have no names gives `{"query": text}`. If the schema has no `query`, the text
    is its only required parameter, or its only one. Other arguments are returned unchanged.
    """
    properties = parameters.get("properties")
    if set(arguments) != {"query"} or not isinstance(properties, Mapping) or "query" in properties:
        return arguments
    required = parameters.get("required")
    names = list(required if required and isinstance(required, list | tuple) else properties)
    return {names[0]: arguments["query"]} if len(names) == 1 and isinstance(names[0], str) else arguments


class FunctionTool:
    """Makes a tool of an async function; arguments are checked against the schema before it is called. Raises
    DataError if `parameters` are not a JSON schema or too large (argument_validator.py)."""

    #: Each call of a turn is made by itself, concurrently, so that each has the whole time limit.
    together = False

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        function: Function,
        limits: ToolLimits | None = None,
    ):
        self.name, self.description, self.function = name, description, function
        self.parameters, self.limits = parameters, limits
        self._validator = ArgumentValidator(parameters)

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, or None. May take seconds for a schema with references or
        regular expressions. Raises what `ArgumentValidator.fault` raises."""
        return self._validator.fault(named_arguments(arguments, self.parameters))

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the same as `fault`, without blocking the event loop."""
        return await self._validator.checked(named_arguments(arguments, self.parameters))

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> list[list[Document] | Failure | Refusal]:
        """Make all calls concurrently; returns a result for each."""
        return list(await asyncio.gather(*map(self._call_once, arguments)))

    async def _call_once(self, arguments: Mapping[str, Any]) -> list[Document] | Failure | Refusal:
        """Return the result of one call; a Failure if the function raises."""
        try:
            result = await self.function(**named_arguments(arguments, self.parameters))
        except Exception as error:
            return Failure(failure_text(self.name), "tool", f"{type(error).__name__}: {error}"[:200])
        if isinstance(result, str):
            return text_result(self.name, result[:MAX_RESULT_CHARS])
        return result  # type: ignore[return-value]  # the tool executor checks it


def tool(
    description: str,
    parameters: Mapping[str, Any],
    *,
    name: str | None = None,
    required: Sequence[str] | None = None,
    limits: ToolLimits | None = None,
) -> Callable[[Function], FunctionTool]:
    """Return a decorator that makes a tool of an async function. Its default `name` is that of the function.
    Raises what `schema_of` raises, and the decorator TypeError for a function that is not async."""
    schema = schema_of(parameters, required)

    def make(function: Function) -> FunctionTool:
        if isfunction(function) and not iscoroutinefunction(function):
            raise TypeError(f"{function.__name__} must be an async function to be a tool: use `async def`")
        return FunctionTool(name or function.__name__, description, schema, function, limits)

    return make


class Searcher(Interface):
    """A search engine. A failed search should be a Failure and not an exception."""

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]:
        """Search for all queries of a turn; returns a result for each, in order."""


class SearchTool:
    """Base class of tools with the argument `query`, which make one search for all calls of a turn."""

    name = SEARCH
    #: Name of the index that answered last, for the records; empty if the tool does not know it.
    index = ""
    description = "Searches a collection of passages for a query and returns the best ones."
    parameters: Mapping[str, Any] = schema_of(
        {"query": {"type": "string", "description": "what to look for"}}
    )

    @staticmethod
    def fault(arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, or None. A search has exactly one, the text `query`."""
        query = arguments.get("query")
        if len(arguments) == 1 and isinstance(query, str):
            return None if query.strip() else "Wrong arguments: the query is empty."
        return "Wrong arguments: a search needs one, `query`, a text."


class SearcherTool(SearchTool):
    """Makes a tool of a Searcher."""

    def __init__(self, name: str, searcher: Searcher):
        self.name, self.search = name, searcher.search
        if hasattr(searcher, "close"):
            self.close = searcher.close

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Document] | Failure]:
        """Make one search for all queries; returns a result for each."""
        return await self.search([args["query"] for args in arguments])


def is_tool(value: Any) -> bool:
    """Return whether a value has the methods and the schema of a `Tool` (rag_r1/agent/interfaces.py); its
    name and description are not looked at. A class is no tool."""
    names = ("call", "fault", "parameters")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def as_tool(name: str, value: Any) -> Any:
    """Return a tool itself, or a Searcher as a tool; None for any other value."""
    if is_tool(value):
        return value
    is_searcher = hasattr(value, "search") and not isinstance(value, type)
    return SearcherTool(name, value) if is_searcher else None


def search_tools(search: Any) -> dict[str, Any]:
    """Return the tools of an episode that can only search, from a Searcher or a tool; for any other value the
    tool is None."""
    return {SEARCH: as_tool(SEARCH, search)}
