"""Reads the entries of `rag_r1.tools`, each of which configures one tool.

    rag_r1:
      tools:
        calculator: calculator                                       # a shipped tool
        notes: {tool: documents, folder: my/notes, topk: 5}          # a shipped tool with options
        ratio: my_package.my_tools:ratio                             # your own, made with `@tool`
        wiki: {tool: "my_package.my_tools:make_wiki", language: fr}  # a factory, which gets the other keys
        weather:                                                     # any async function
          tool: my_package.my_tools:weather
          description: Says what the weather is in a town.
          parameters: {town: {type: string}}

`tool` is one of SHIPPED, or the import path of a tool (function_tool.py), of an async function, or of a
factory that returns a tool or a Searcher. The following keys are read here for every tool; all others are
options of the tool itself:

    description   what the policy reads about the tool, in place of the tool's own description
    parameters    the JSON schema of its arguments, or its properties; checked before the tool's own schema
    required      names of the properties that a call must have; by default all of them
    limits        time limit, retries, calls per episode, cache (rag_r1/options/tool_limits.py)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from inspect import iscoroutinefunction
from typing import Annotated, Any

from cachetools import LRUCache
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BeforeValidator

from rag_r1.options.declare import OptionFault, OptionsError, option_names, options
from rag_r1.options.from_config import options_from
from rag_r1.options.import_path import ImportPathError, import_object
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.options.types import Constraint, Text
from rag_r1.protocols import SEARCH, CachedDocuments, Document, Failure, Refusal
from rag_r1.tools.argument_validator import ArgumentValidator
from rag_r1.tools.function_tool import FunctionTool, as_tool, is_tool, named_arguments, schema_of

#: The factories of the shipped tools, which take the options and the key of an entry. Each is imported when
#: an entry names it.
SHIPPED = {
    "retrieval": "rag_r1.tools.retrieval.client:make_retrieval",
    "documents": "rag_r1.tools.documents.tool:make_documents",
    "graph": "rag_r1.tools.graph:make_graph",
    "sparql": "rag_r1.tools.sparql:make_sparql",
    "elasticsearch": "rag_r1.tools.elasticsearch:make_elasticsearch",
    "page": "rag_r1.tools.page:make_page",
    "calculator": "rag_r1.tools.calculator:make_calculator",
    "mcp": "rag_r1.tools.mcp.tool:make_mcp",
}

#: The name of a shipped tool or an import path; or a mapping with `tool`, its options, and the keys above.
ToolEntry = str | Mapping[str, Any]


def _limits(value: Any) -> Any:
    """Return a mapping of limits as ToolLimits, and anything else unchanged."""
    return options_from(ToolLimits, value) if isinstance(value, Mapping) else value


def _checked_name(tool: str) -> str:
    """Return the name of a shipped tool or an import path. Raises ValueError for anything else."""
    if tool not in SHIPPED and ":" not in tool:
        raise ValueError("neither shipped nor an import path")
    return tool


@options("rag_r1.tools.NAME")
class EntryKeys:
    """The keys of an entry that are read for every tool."""

    tool: Annotated[
        Text,
        AfterValidator(_checked_name),
        Constraint(f"one of {', '.join(SHIPPED)}, or an import path, `package.module:name`"),
    ]
    description: Text | None = None
    parameters: Annotated[dict | None, Constraint("a JSON schema, its properties, or null")] = None
    required: Annotated[list[Text] | None, Constraint("a list of names of parameters, or null")] = None
    limits: Annotated[ToolLimits | None, BeforeValidator(_limits), Constraint("a mapping of limits")] = None


def make_tool(name: str, entry: ToolEntry) -> Any:
    """Return the tool of an entry of `rag_r1.tools`: a new one, or the one that an import path names. Raises
    ValueError, which names the key, and whatever the factory raises."""
    key = f"rag_r1.tools.{name}"
    if name == SEARCH:
        raise ValueError(f"{key}: the name is used by the search engine; its options are rag_r1.retriever")
    if not isinstance(entry, str | Mapping):
        raise ValueError(
            f"{key} must be a tool's name, an import path or {{tool, ...options}}, not {entry!r}"
        )
    options = {"tool": entry} if isinstance(entry, str) else dict(entry)
    common = {option: options.pop(option) for option in option_names(EntryKeys) if option in options}
    try:
        keys = options_from(EntryKeys, common, key)
    except OptionsError as error:
        raise OptionsError([*error.faults, *_option_faults(common.get("tool"), options, key)]) from None
    schema = _schema(keys, key)
    loaded = _load(keys.tool, options, key)
    if iscoroutinefunction(loaded):
        if schema is None or keys.description is None:
            raise ValueError(
                f"{key}: {keys.tool!r} is a plain async function: give its description and parameters"
            )
        loaded = FunctionTool(name, keys.description, schema, loaded)
    if (tool := as_tool(name, loaded)) is None:
        raise ValueError(
            f"{key}: {keys.tool!r} gives neither a tool nor a searcher, but {type(loaded).__name__}"
        )
    if isinstance(tool, FunctionTool) and tool.name != name:
        tool = copy(tool)  # an imported tool may be in several entries
        tool.name = name  # texts for the policy name the tool as the policy calls it
    limits = keys.limits or getattr(tool, "limits", None)
    if keys.description is None and schema is None and limits is None:
        return tool
    return ConfiguredTool(name, tool, keys.description, schema, limits)


def _option_faults(tool: Any, options: dict[str, Any], key: str) -> list[OptionFault]:
    """Return the faults of the options of a shipped tool, to report them together with those of the other
    keys."""
    try:
        if isinstance(tool, str) and tool in SHIPPED:
            _load(tool, options, key)
    except ValueError as error:  # one without faults is raised again when the other keys are correct
        return error.faults if isinstance(error, OptionsError) else []
    return []


def _schema(keys: EntryKeys, key: str) -> dict[str, Any] | None:
    """Return the JSON schema that an entry declares; None without `parameters`. Raises ValueError, which
    names the key."""
    if keys.parameters is None and not keys.required:
        return None
    try:
        return schema_of(keys.parameters or {}, keys.required)
    except (SchemaError, TypeError) as error:
        reason = error.message if isinstance(error, SchemaError) else error
        raise ValueError(f"{key}.parameters must be a JSON schema: {reason}") from error


def _load(tool: str, options: dict[str, Any], key: str) -> Any:
    """Return the tool or async function that `tool` names, or the result of the factory that it names. Raises
    ValueError, which names the key, and whatever the factory raises."""
    if tool in SHIPPED:
        return import_object(SHIPPED[tool])(options, key)
    try:
        target = import_object(tool)
    except ImportPathError as error:
        raise ImportPathError(f"{key}: {error}", error.remedy) from error
    if not (is_tool(target) or iscoroutinefunction(target)):
        return target(options)
    if options:
        raise ValueError(f"{key}: {tool!r} is a tool and takes no options; found {', '.join(options)}")
    return target


class ConfiguredTool:
    """A tool with the description, the parameters and the limits of its entry, and with a cache if `limits`
    has one.

    The cache belongs to the process. Its keys are the arguments of calls, and it holds neither failures nor
    refusals. A tool that reads the context of its calls is not cached here, since its answers depend on more
    than the arguments (the retrieval client has its own cache).
    """

    def __init__(
        self,
        name: str,
        tool: Any,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        limits: ToolLimits | None = None,
    ):
        self.name, self.tool, self.limits = name, tool, limits
        self.description = tool.description if description is None else description
        self.parameters = tool.parameters if parameters is None else parameters
        self.together = getattr(tool, "together", True)
        self.reads_context = getattr(tool, "reads_context", False)
        self._validator = None if parameters is None else ArgumentValidator(parameters)
        size = limits.cache_size if limits and not self.reads_context else 0
        self._cache: LRUCache[str, tuple[Document, ...]] = LRUCache(size)
        if hasattr(tool, "close"):
            self.close = tool.close
        if not size:
            self.call = tool.call

    @property
    def index(self) -> str:
        """The name of the index that answered last; empty if the tool has none."""
        return getattr(self.tool, "index", "")

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, or None. Raises what `ArgumentValidator.fault` and the
        tool's own `fault` raise."""
        args = named_arguments(arguments, self.parameters)
        fault = None if self._validator is None else self._validator.fault(args)
        return fault or self.tool.fault(arguments)

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the same as `fault`, without blocking the event loop."""
        args = named_arguments(arguments, self.parameters)
        if self._validator is not None and (fault := await self._validator.checked(args)):
            return fault
        checked = getattr(self.tool, "checked", None)
        return self.tool.fault(arguments) if checked is None else await checked(arguments)

    async def call(
        self, arguments: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[Document] | Failure | Refusal]:
        """Return a result for each call, from the cache or from the tool. Raises what the tool raises."""
        keys = [json.dumps(dict(args), sort_keys=True, default=str) for args in arguments]
        entries = map(self._cache.get, keys)
        results: list[Any] = [None if entry is None else CachedDocuments(entry) for entry in entries]
        missing = [i for i, result in enumerate(results) if result is None]
        new_results = await self.tool.call([arguments[i] for i in missing]) if missing else []
        for i, result in zip(missing, new_results, strict=True):
            results[i] = result
            if isinstance(result, list | tuple) and all(isinstance(item, Document) for item in result):
                self._cache[keys[i]] = tuple(result)
        return results
