"""`rag-r1 mcp --tools`: prints the tools of an MCP server as entries of `rag_r1.tools`."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import yaml

from rag_r1.io.terminal_text import has_control_characters
from rag_r1.options.command_exit import CommandError
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import FIRST_ANSWER_S
from rag_r1.runs.start_checks import try_servers
from rag_r1.system.installation import pip_command
from rag_r1.tools.function_tool import MAX_RESULT_CHARS
from rag_r1.tools.mcp.tool import McpFailure, McpOptions, UnreachableFailure, has_mcp

#: The syntax of --tools, for messages about wrong arguments.
_USAGE = "rag-r1 mcp --tools [--token-env NAME] URL, or rag-r1 mcp --tools COMMAND ..."


def print_tools(arguments: Sequence[str]) -> int:
    """Print the tools of the server that the arguments after --tools name, and return 0. Raises CommandError
    if they do not name a server, or if it does not list its tools, and OptionsError for a wrong address or
    variable."""
    options = _server_options(arguments)
    if (variable := options.get("token_env")) and not os.environ.get(variable, "").strip():
        fault = "there is no such environment variable, so no token is sent: set it to the token"
        print(f"warning: --token-env {variable}: {fault}", file=sys.stderr)
    if not has_mcp():
        raise CommandError(f"rag-r1 mcp needs the package mcp, 2.0 or later: {pip_command('mcp')}")
    entries = {tool.name: _entry(tool, options) for tool in _fetch_tools(options)}
    print(_as_yaml({"rag_r1": {"tools": entries}}))
    return 0


def _entry(tool: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool of the server with these options as an entry of `rag_r1.tools`."""
    return {
        "tool": "mcp",
        # Copies, since YAML would write options that entries share only once, and refer to them elsewhere.
        **deepcopy(options),
        "description": (tool.description or "")[:MAX_RESULT_CHARS],
        "parameters": tool.input_schema,
    }


def _server_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the fields of McpOptions that the arguments after --tools give: the server's address with the
    variable of its token, or the server's command. Raises CommandError if they are wrong."""
    options: dict[str, Any] = {}
    if arguments[:1] == ["--token-env"]:
        options, arguments = {"token_env": "".join(arguments[1:2])}, arguments[2:]  # "" without a name
    elif arguments and arguments[0].startswith("--token-env="):
        options, arguments = {"token_env": arguments[0].partition("=")[2]}, arguments[1:]
    if arguments and arguments[0].startswith("-"):
        raise CommandError(f"rag-r1 mcp --tools: unknown flag {arguments[0].partition('=')[0]}: {_USAGE}")
    is_address = bool(arguments) and "://" in arguments[0]
    if is_address and any(argument.split("=")[0] == "--token-env" for argument in arguments[1:]):
        raise CommandError(f"rag-r1 mcp --tools: --token-env comes before the address: {_USAGE}")
    if is_address and len(arguments) > 1:
        raise CommandError(f"rag-r1 mcp --tools: nothing may follow the address: {_USAGE}")
    if not arguments or (options and not is_address):
        kind = "of an MCP server, after --token-env NAME" if options else "or the command of an MCP server"
        raise CommandError(f"rag-r1 mcp --tools needs the address {kind}: {_USAGE}")
    return options | ({"url": arguments[0]} if is_address else {"command": list(arguments)})


def _fetch_tools(options: Mapping[str, Any]) -> list[Any]:
    """Return the tools of a server, as the package mcp describes them. Raises CommandError if no MCP server
    answers, or if it does not list its tools, and OptionsError for wrong options."""
    url = options.get("url")
    try:
        # A command has no such limit, since npx, for example, may have to download the server first.
        limit = {"timeout_s": FIRST_ANSWER_S} if url else {}
        checked = options_from(McpOptions, {**options, **limit}, "rag_r1.tools.NAME")
        if not url:
            waiting = f"waiting for {shlex.join(options['command'])}, {checked.timeout_s:g} s at most"
            print(waiting, file=sys.stderr, flush=True)
        # try_servers hides the log of the package mcp, which repeats the error.
        [tools] = asyncio.run(try_servers(_tools_of(checked)))
        return tools
    except UnreachableFailure as error:
        reason = error.reason
        if "validation error" in reason:  # replaces ten lines of the package mcp
            reason = "it answers with JSON that is not MCP's"
        if error.status == 401:
            variable = options.get("token_env")
            remedy = (
                f"set ${variable} to it" if variable else "set a variable to it, and give --token-env NAME"
            )
            reason = f"{url} wants another token (HTTP 401): {remedy}"
        elif url:
            reason = f"no MCP server answers at {url} ({reason}): start it, or correct the address"
        else:
            command = shlex.join(options["command"])
            reason = f"`{command}` does not start an MCP server ({reason}): correct the command"
        raise CommandError(reason) from error


def _as_yaml(entries: Any) -> str:
    """Return YAML. Non-ASCII characters are escaped only if some of them could control a terminal."""
    dump = partial(yaml.safe_dump, entries, sort_keys=False, width=110)
    text = dump(allow_unicode=True)
    return dump(allow_unicode=False) if has_control_characters(text) else text


async def _tools_of(options: McpOptions) -> list[Any]:
    """Return the tools that a server lists. Raises UnreachableFailure, and CommandError if the server
    does not list them."""
    from mcp.shared.exceptions import MCPError

    from rag_r1.tools.mcp.connections import server_for_loop

    server = server_for_loop(options)
    try:
        async with server.connection() as connection:
            return await connection.list_tools()
    except UnreachableFailure:
        raise
    except (McpFailure, MCPError, TimeoutError) as error:
        raise CommandError(f"the server does not list its tools: {error}") from error
    finally:
        await server.close()
