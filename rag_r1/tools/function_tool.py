"""Makes a tool from an async function or from a searcher.

    @tool("Adds two numbers.", {"a": {"type": "number"}, "b": {"type": "number"}})
    async def add(a: float, b: float) -> str:
        return str(a + b)

The second argument is the properties of a JSON schema (all required, unless `required` lists those that are),
or a whole schema. Arguments are checked against it before the function is called, so a policy's mistake never
reaches the function. It returns a text, which is shown unchanged (but neutralised), a list of Document, shown
in the protocol's format, or a Refusal, which says what is wrong with arguments that the schema allows. If it
raises, only that call fails. `limits`: its time limit, retries, calls per episode, cache
(rag_r1/options/tool_limits.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from typing import Protocol as Interface

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from rag_r1.options.tool_limits import ToolLimits
from rag_r1.protocols import SEARCH, Document, Failure, Refusal, text_result
from rag_r1.protocols.actions import failure_text
from rag_r1.tools.argument_validator import MAX_SCHEMA_CHARS, ArgumentValidator

#: Most characters of a text that a tool returns; usually the budget of the observation is the lower limit.
_MAX_CHARS = 20_000

Function = Callable[..., Awaitable["str | Sequence[Document] | Refusal"]]


def schema_of(parameters: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """The JSON schema of an object with these properties; a whole schema of an object is returned unchanged.
    Raises jsonschema's SchemaError for a wrong schema, and for one that is too large."""
    if parameters.get("type") == "object":
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
    """The arguments of a call by the names of the schema. A syntax that names no arguments gives `{"query":
    text}`: for a schema without `query`, the text is the only required parameter, or the only one. Other
    arguments are unchanged."""
    properties = parameters.get("properties")
    if set(arguments) != {"query"} or not isinstance(properties, Mapping) or "query" in properties:
        return arguments
    required = parameters.get("required")
    names = list(required if required and isinstance(required, list | tuple) else properties)
    return {names[0]: arguments["query"]} if len(names) == 1 and isinstance(names[0], str) else arguments


class FunctionTool:
    """A tool around an async function, which is called once its arguments have passed the schema."""

    #: The calls of a turn are made one by one, side by side, each with a time limit of its own.
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
        """Returns what is wrong with the arguments, or None. May take seconds for a schema with references or
        regular expressions."""
        return self._validator.fault(named_arguments(arguments, self.parameters))

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """Returns the same as `fault`; the event loop goes on meanwhile."""
        return await self._validator.checked(named_arguments(arguments, self.parameters))

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> list[list[Document] | Failure | Refusal]:
        """Make all calls concurrently; returns the result of each."""
        return list(await asyncio.gather(*map(self._call_once, arguments)))

    async def _call_once(self, arguments: Mapping[str, Any]) -> list[Document] | Failure | Refusal:
        """The result of one call; a Failure if the function raises."""
        try:
            result = await self.function(**named_arguments(arguments, self.parameters))
        except Exception as error:
            return Failure(failure_text(self.name), "tool", f"{type(error).__name__}: {error}"[:200])
        if isinstance(result, str):
            return text_result(self.name, result[:_MAX_CHARS])
        return result  # type: ignore[return-value]  # the tool executor checks it


def tool(
    description: str,
    parameters: Mapping[str, Any],
    *,
    name: str | None = None,
    required: Sequence[str] | None = None,
    limits: ToolLimits | None = None,
) -> Callable[[Function], FunctionTool]:
    """Decorator that makes an async function a tool. `name` defaults to the function's name."""
    schema = schema_of(parameters, required)

    return lambda function: FunctionTool(name or function.__name__, description, schema, function, limits)


class Searcher(Interface):
    """Searches for all queries of a turn. A failed search is a Failure, never an exception."""

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]:
        """A result for each query, in their order."""


class SearchTool:
    """Base of the tools with one argument, `query`, whose `call` makes one search for all calls of a turn."""

    name = SEARCH
    #: The index that answered last, as records name it; empty if the tool does not know.
    index = ""
    description = "Searches a collection of passages for a query and returns the best ones."
    parameters: Mapping[str, Any] = schema_of(
        {"query": {"type": "string", "description": "what to look for"}}
    )

    @staticmethod
    def fault(arguments: Mapping[str, Any]) -> str | None:
        """Returns what is wrong with the arguments, or None: a search has one, a text `query`."""
        query = arguments.get("query")
        if len(arguments) == 1 and isinstance(query, str):
            return None if query.strip() else "Wrong arguments: the query is empty."
        return "Wrong arguments: a search needs one, `query`, a text."


class SearcherTool(SearchTool):
    """A tool around a Searcher."""

    def __init__(self, name: str, searcher: Searcher):
        self.name, self.search = name, searcher.search
        if hasattr(searcher, "close"):
            self.close = searcher.close

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Document] | Failure]:
        """Make one search for all queries; returns a result for each."""
        return await self.search([args["query"] for args in arguments])


def is_tool(value: Any) -> bool:
    """Whether an object, not a class, has the methods and attributes of the agent core's `Tool`."""
    names = ("call", "fault", "parameters")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def as_tool(name: str, value: Any) -> Any:
    """A tool, or a Searcher as a tool; None if it is neither."""
    if is_tool(value):
        return value
    return SearcherTool(name, value) if hasattr(value, "search") else None


def search_tools(search: Any) -> dict[str, Any]:
    """The tools of an episode that can only search, with a Searcher or a tool."""
    return {SEARCH: as_tool(SEARCH, search)}
