"""Makes a tool from an async function or from a searcher.

    @tool("Adds two numbers.", {"a": {"type": "number"}, "b": {"type": "number"}})
    async def add(a: float, b: float) -> str:
        return str(a + b)

The second argument is the properties of a JSON schema (all required, unless `required` lists those that are),
or a whole schema. Arguments are checked against it before the function is called, so a policy's mistake never
reaches the function. It returns a text, which is shown unchanged (but neutralised), a list of Document, shown
in the protocol's format, or a Refusal: what is wrong with arguments that the schema allows. If it raises,
only that call fails. `limits`: its time limit, retries, calls per episode, cache
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
from rag_r1.protocols.retriever_query import Context
from rag_r1.tools.argument_validator import MAX_SCHEMA_CHARS, ArgumentValidator

#: Characters kept of a text that a tool returns; usually the budget of the observation is the lower limit.
_MOST_CHARS = 20_000

Function = Callable[..., Awaitable["str | Sequence[Document] | Refusal"]]


def schema_of(parameters: Mapping[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """The JSON schema of an object with these properties; a whole schema of an object is returned unchanged.
    Raises jsonschema's SchemaError if it is not a valid schema."""
    if parameters.get("type") == "object":
        schema = dict(parameters)
    else:
        names = list(parameters) if required is None else list(required)
        schema = {"type": "object", "properties": dict(parameters), "required": names}
        schema["additionalProperties"] = False
    if len(json.dumps(schema, default=str)) > MAX_SCHEMA_CHARS:
        raise SchemaError(f"it has more than {MAX_SCHEMA_CHARS >> 10} KiB")
    Draft202012Validator.check_schema(schema)
    return schema


async def checked_fault(tool: Any, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments of a call, or None; if the check takes long, the event loop goes on
    meanwhile (the tool's coroutine `checked`, if it has one)."""
    checked = getattr(tool, "checked", None)
    return tool.fault(arguments) if checked is None else await checked(arguments)


def named_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Words from a syntax that names no arguments, `{"query": text}`, as the parameter that they are meant
    for: the only required one, or the only one, of a schema without `query`. Others are unchanged."""
    properties = parameters.get("properties")
    if set(arguments) != {"query"} or not isinstance(properties, Mapping) or "query" in properties:
        return arguments
    required = parameters.get("required")
    names = list(required if required and isinstance(required, list | tuple) else properties)
    return {names[0]: arguments["query"]} if len(names) == 1 and isinstance(names[0], str) else arguments


class FunctionTool:
    """A tool around an async function; see the top of the module."""

    #: The guard makes the calls of a turn one by one, side by side, each with a time limit of its own.
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
        self._check = ArgumentValidator(parameters)

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments, or None. May take seconds for a schema with references or regular
        expressions."""
        return self._check.fault(named_arguments(arguments, self.parameters))

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """The same; the event loop goes on meanwhile."""
        return await self._check.checked(named_arguments(arguments, self.parameters))

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> list[list[Document] | Failure | Refusal]:
        """Make all calls concurrently."""
        return list(await asyncio.gather(*map(self._one, arguments)))

    async def _one(self, arguments: Mapping[str, Any]) -> list[Document] | Failure | Refusal:
        try:
            result = await self.function(**named_arguments(arguments, self.parameters))
        except Exception as error:
            shown = f"The tool {self.name} did not answer. Try another call, or answer with what is known."
            return Failure(shown, "tool", f"{type(error).__name__}: {error}"[:200])
        if isinstance(result, str):
            return text_result(self.name, result[:_MOST_CHARS])
        return result  # type: ignore[return-value]  # the episode's guard checks it


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

    def made(function: Function) -> FunctionTool:
        return FunctionTool(name or function.__name__, description, schema, function, limits)

    return made


class Searcher(Interface):
    """Answers all queries of a turn, aligned with them. A failed search is a Failure, never an exception.

    It may have a coroutine `in_context(queries, context)`, which returns what is to be searched for instead
    of the queries of a turn, or a Failure of all of them; `context()` gives the turn's CallContext
    (rag_r1/protocols/retriever_query.py).
    """

    async def search(self, queries: Sequence[str]) -> Sequence[Sequence[Document] | Failure]: ...


async def sent_arguments(inner: Any, what: Sequence[Any], context: Context) -> Sequence[Any] | Failure:
    """What a tool (or a searcher) makes of the arguments (or queries) of a turn; unchanged if it does not
    read the context."""
    in_context = getattr(inner, "in_context", None)
    return what if in_context is None else await in_context(what, context)


class SearcherTool:
    """A tool around an object with a coroutine `search(queries)`: one search for all calls of a turn."""

    description = "Searches a collection of passages for a query and returns the best ones."
    parameters: Mapping[str, Any] = schema_of(
        {"query": {"type": "string", "description": "what to look for"}}
    )

    def __init__(self, name: str, searcher: Searcher):
        self.name, self.searcher = name, searcher

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """A search has one argument, a text `query`."""
        query = arguments.get("query")
        if len(arguments) == 1 and isinstance(query, str):
            return None if query.strip() else "Wrong arguments: the query is empty."
        return "Wrong arguments: a search needs one, `query`, a text."

    async def call(self, arguments: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Document] | Failure]:
        """Make one search for all queries."""
        return await self.searcher.search([one["query"] for one in arguments])

    async def in_context(
        self, arguments: Sequence[Mapping[str, Any]], context: Context
    ) -> Sequence[Mapping[str, Any]] | Failure:
        """The arguments with what the searcher is to be sent for each query."""
        sent = await sent_arguments(self.searcher, [one["query"] for one in arguments], context)
        return sent if isinstance(sent, Failure) else [{"query": query} for query in sent]

    async def close(self) -> None:
        """Close the searcher's connections, if it has any."""
        if callable(close := getattr(self.searcher, "close", None)):
            await close()


def search_tools(searcher: Searcher) -> dict[str, SearcherTool]:
    """The tools of an episode that can only search."""
    return {SEARCH: SearcherTool(SEARCH, searcher)}
