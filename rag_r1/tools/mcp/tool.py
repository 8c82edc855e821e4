"""The tool `mcp`: a tool of any MCP server, over stdio or streamable HTTP.

    rag_r1:
      tools:
        read_file: {tool: mcp, command: [npx, "-y", "@modelcontextprotocol/server-filesystem", /data]}
        lookup: {tool: mcp, url: "http://127.0.0.1:9000/mcp", call: find_person, token_env: LOOKUP_TOKEN}

An entry is one tool of a server. `call` is the name of the tool at the server, by default that of the entry.
`rag-r1 mcp --tools` prints the entries for the tools of a server, with descriptions and schemas. Put these
into the configuration: then what the policy reads about a tool is fixed, and the server cannot change it
later.

All entries with the same server share a connection in each event loop, which the first call opens. If the
server dies or does not answer in time, the calls concerned fail, and the next call opens a new connection;
the old one is closed as soon as no call waits for it. If the server marks a result as an error of the tool
(`isError`), the policy reads it, as MCP intends. With `errors: failures` it counts as a failure of the tool,
which suits servers that report their own faults in this way.

A stdio server gets the environment variables that MCP passes on by default, and those that `env` names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

from pydantic import Field

from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.declare import OptionFault, OptionsError, options
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import Address
from rag_r1.options.types import Constraint, PositiveSeconds, Text
from rag_r1.protocols import Refusal
from rag_r1.system.installation import pip_command
from rag_r1.tools.function_tool import MAX_RESULT_CHARS, FunctionTool, named_arguments, schema_of
from rag_r1.tools.secret_option import Variable

#: The type of an option that is a list of texts, none of them empty.
_Texts = Annotated[
    tuple[Annotated[Text, Field(min_length=1)], ...], Constraint("a list of texts, such as [npx, server]")
]


@options("rag_r1.tools.NAME")
class McpOptions:
    """The keys of the tool `mcp`. A server is given by either `command` or `url`."""

    #: The command that starts a server, which is connected over stdio.
    command: _Texts | None = None
    #: The address of a server that is connected over streamable HTTP.
    url: Address | None = None
    #: The name of the tool at the server; null: the name of the entry.
    call: Text | None = None
    #: Names of environment variables that the command gets.
    env: _Texts = ()
    #: The folder in which the command is started; null: the current one.
    cwd: Text | None = None
    #: Environment variable with a bearer token for `url`.
    token_env: Variable = None
    #: Seconds for connecting, for listing the tools, and for the answer to a call. If entries share a
    #: connection, the limit of the one that is called first applies to the first two.
    timeout_s: PositiveSeconds = 60.0
    #: Whether the policy is told about an error of the tool, or it counts as a failure.
    errors: Literal["told", "failures"] = "told"


def make_mcp(options: Mapping[str, Any], key: str) -> McpTool:
    """Return the tool `mcp`. Raises OptionsError for a wrong option, and ValueError if the package mcp is
    missing."""
    parsed = options_from(McpOptions, options, key)
    if (parsed.command is None) == (parsed.url is None) or parsed.command == ():
        raise OptionsError([OptionFault(key, "needs either a command or a url")])
    remedies = {"token_env": "use env"} if parsed.url is None else dict.fromkeys(("env", "cwd"), "remove it")
    faults = [
        OptionFault(f"{key}.{name}", f"has no effect on this kind of server: {remedy}")
        for name, remedy in remedies.items()
        if getattr(parsed, name)
    ]
    if faults:
        raise OptionsError(faults)
    if not has_mcp():
        raise ValueError(f"{key} needs the package mcp, 2.0 or later: {pip_command('mcp')}")
    return McpTool(key.removeprefix("rag_r1.tools."), parsed)


def has_mcp() -> bool:
    """Return whether version 2 or later of the package mcp is installed. It is not imported, which would take
    seconds."""
    try:
        return int(version("mcp").partition(".")[0]) >= 2
    except (PackageNotFoundError, ValueError):
        return False


class McpFailure(Exception):
    """Raised if a server does not answer a call as it should."""


class UnreachableFailure(McpFailure):
    """Raised if no connection to a server can be opened. `reason` says why, and `status` is the HTTP status
    with which the server has refused it, if it has."""

    def __init__(self, reason: str, status: int | None = None):
        super().__init__(f"the server cannot be reached: {reason}")
        self.reason, self.status = reason, status


class McpTool(FunctionTool):
    """One tool of a server. `name` is that of its entry, by which the policy calls it. Its own schema accepts
    any arguments; they are checked against the server's schema when the connection is open."""

    def __init__(self, name: str, options: McpOptions):
        #: The name of the tool at the server.
        self.name_at_server = options.call or name
        description = f"The tool {self.name_at_server} of an MCP server."
        super().__init__(name, description, schema_of({"type": "object"}), self._call_at_server)
        self.options = options

    async def _call_at_server(self, /, **arguments: Any) -> str | Refusal:
        """Call the tool at the server; returns the text of the result. Raises McpFailure, and what the
        package mcp raises."""
        async with (await _connections()).server_for_loop(self.options).connection() as connection:
            schemas = await connection.schemas()
            if self.name_at_server not in schemas:
                names = terminal_text(", ".join(sorted(schemas)), 300) or "none"
                raise McpFailure(f"the server has no tool {self.name_at_server!r}; it has: {names}")
            args = dict(named_arguments(arguments, schemas[self.name_at_server]))
            if fault := await connection.fault(self.name_at_server, args):
                return Refusal(fault[:300])
            result = await connection.client.call_tool(self.name_at_server, args, self.options.timeout_s)
        text = content_text(result)
        if not result.is_error:
            return text
        if self.options.errors == "failures":
            raise McpFailure(text[:200])
        return Refusal(text or "The tool reports an error.")

    async def close(self) -> None:
        """Close the connection of this event loop to the server."""
        await (await _connections()).server_for_loop(self.options).close()


async def _connections() -> Any:
    """Return the module connections.py. It imports the package mcp, which takes seconds, so that is done in a
    thread."""
    return await asyncio.to_thread(import_module, "rag_r1.tools.mcp.connections")


def content_text(result: Any) -> str:
    """Return the content of a result as one text of at most MAX_RESULT_CHARS characters. A block that is not
    a text is only named."""
    parts = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", getattr(resource, "text", None))
        parts.append(text if isinstance(text, str) else f"({getattr(block, 'type', 'content')}, not shown)")
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)[:MAX_RESULT_CHARS]
