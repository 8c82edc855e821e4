"""The tool `mcp`: a tool of any MCP server, over stdio or streamable HTTP.

    rag_r1:
      tools:
        read_file: {tool: mcp, command: [npx, "-y", "@modelcontextprotocol/server-filesystem", /data]}
        lookup: {tool: mcp, url: "http://127.0.0.1:9000/mcp", call: find_person, token_env: LOOKUP_TOKEN}

An entry is one tool of a server; `call` is its name there, the entry's own if it is missing. `rag-r1 mcp
--tools` prints the entries of a server's tools with their descriptions and schemas. These belong into the
configuration: what the policy reads about a tool is then fixed, and a server cannot change it afterwards.

All entries of an event loop with the same server share a connection. It is opened by the first call. If the
server dies, or does not answer in time, the calls concerned are failures, and the next call opens a new one;
the old connection is closed when no call waits for it any more. The policy reads what a server sends as an
error of the tool (`isError`), as MCP intends it. With `errors: failures` it counts as the tool's failure, for
servers that report their own faults in this way.

A stdio server is started with MCP's few default variables of the environment and those that `env` names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

from pydantic import Field

from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.declare import (
    Constraint,
    OptionFault,
    OptionsError,
    PositiveSeconds,
    Text,
    options,
    options_from,
)
from rag_r1.options.server_address import Address
from rag_r1.protocols import Refusal
from rag_r1.system.installation import pip_command
from rag_r1.tools.function_tool import FunctionTool, named_arguments, schema_of
from rag_r1.tools.secret_option import Variable

#: Longest text of a result, in characters.
MAX_CHARS = 20_000


_Texts = Annotated[
    tuple[Annotated[Text, Field(min_length=1)], ...], Constraint("a list of texts, such as [npx, server]")
]


@options("rag_r1.tools.NAME")
class McpOptions:
    """The keys of the tool `mcp`: of its server (`command` or `url`), and of the tool."""

    #: The command of a server that is started here and spoken to over stdio.
    command: _Texts | None = None
    #: The address of a server with streamable HTTP.
    url: Address | None = None
    #: The tool's name at the server; null: the name of the entry.
    call: Text | None = None
    #: Names of environment variables that a command gets.
    env: _Texts = ()
    #: The folder in which a command is started; null: the current one.
    cwd: Text | None = None
    #: Environment variable with a bearer token for `url`.
    token_env: Variable = None
    #: Seconds for connecting, and for the answer to a call.
    timeout_s: PositiveSeconds = 60.0
    #: Whether the policy reads a tool's error (`told`), or it counts as a failure.
    errors: Literal["told", "failures"] = "told"


def make_mcp(options: Mapping[str, Any], key: str) -> McpTool:
    """The tool `mcp`. Raises OptionsError for a wrong option, and ValueError if the package mcp is
    missing."""
    parsed = options_from(McpOptions, options, key)
    if (parsed.command is None) == (parsed.url is None) or parsed.command == ():
        raise OptionsError([OptionFault(f"{key}.command", f"{key} needs either a command or a url")])
    if not has_mcp():
        raise ValueError(f"{key} needs the package mcp, 2.0 or later: {pip_command('mcp')}")
    return McpTool(parsed.call or key.removeprefix("rag_r1.tools."), parsed)


def has_mcp() -> bool:
    """Whether the package mcp is installed, in version 2 or later. Importing it would take seconds."""
    try:
        return int(version("mcp").partition(".")[0]) >= 2
    except (PackageNotFoundError, ValueError):
        return False


class McpFailure(Exception):
    """A call that the server did not answer as it should."""


class McpTool(FunctionTool):
    """One tool of a server. Any arguments pass its own schema; they are checked by the server's schema when
    the connection is open, and wrong ones are refused."""

    def __init__(self, name: str, options: McpOptions):
        schema = schema_of({"type": "object"})
        super().__init__(name, f"The tool {name} of an MCP server.", schema, self._ask)
        self.options = options

    async def _ask(self, /, **arguments: Any) -> str | Refusal:
        """The text of the result. Raises McpFailure, and what the package mcp raises."""
        async with (await _connections()).server_for_loop(self.options).connection() as connection:
            schemas = await connection.schemas()
            if self.name not in schemas:
                names = terminal_text(", ".join(sorted(schemas)), 300) or "none"
                raise McpFailure(f"the server has no tool {self.name!r}; it has: {names}")
            args = dict(named_arguments(arguments, schemas[self.name]))
            if fault := await connection.fault(self.name, args):
                return Refusal(fault[:300])
            result = await connection.client.call_tool(self.name, args, self.options.timeout_s)
        text = content_text(result)
        if not result.is_error:
            return text
        if self.options.errors == "failures":
            raise McpFailure(text[:200])
        return Refusal(text[:MAX_CHARS] or "The tool reports an error.")

    async def close(self) -> None:
        """Close the connection of this event loop to the server."""
        await (await _connections()).server_for_loop(self.options).close()


async def _connections() -> Any:
    """The module that imports the package mcp. That takes seconds, for which the event loop must not wait."""
    return await asyncio.to_thread(import_module, "rag_r1.tools.mcp.connections")


def content_text(result: Any) -> str:
    """The content of a result as one text; a block that is not a text is named, not shown."""
    parts = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", getattr(resource, "text", None))
        parts.append(text if isinstance(text, str) else f"({getattr(block, 'type', 'content')}, not shown)")
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)[:MAX_CHARS]


def prefixed_entries(tools: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """A server's tools as entries of `rag_r1.tools`, with description and parameters but without the
    server."""
    return {
        tool.name: {
            "description": (tool.description or "")[:MAX_CHARS],
            "parameters": dict(tool.input_schema),
        }
        for tool in tools
    }
