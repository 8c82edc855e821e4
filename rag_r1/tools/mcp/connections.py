"""Connections to MCP servers, shared by all tools of an event loop that use the same server.

Each connection has its own task, which opens and closes it: the package mcp requires that both happen in one
task, while calls come from any task. A connection that has failed, or on which a call was given up, is not
used for new calls. The next call opens another one, and the old one is closed when its last call has ended.
So a server that dies or hangs affects only the calls that were waiting for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import httpx2
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.system.child_processes import bind_to_parent
from rag_r1.tools.argument_validator import ArgumentValidator
from rag_r1.tools.mcp.server_output import limit_logs
from rag_r1.tools.mcp.streams import BoundedTransport, CloseReason, http_streams, stdio_streams
from rag_r1.tools.mcp.tool import McpFailure, McpOptions, UnreachableFailure
from rag_r1.tools.secret_option import bearer_header

logger = logging.getLogger(__name__)
limit_logs()

#: Most pages and most tools in a server's list of tools.
_MAX_PAGES, _MAX_TOOLS = 50, 1_000
#: Seconds to wait for a connection to close.
_CLOSING_S = 15.0
#: Seconds for which a server may send nothing on a stream.
_STREAM_S = 300.0
#: Errors after which a connection is useless. All other errors are answers of the server.
_CONNECTION_ERRORS = {CONNECTION_CLOSED, REQUEST_TIMEOUT}

#: The servers of each event loop, by the options that tell them apart.
_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, McpServer]] = WeakKeyDictionary()


def server_for_loop(options: McpOptions) -> McpServer:
    """Return the server that these options name in the running event loop, without connecting to it. Its time
    limits, but for the answers to calls, are those of the options with which it was first named."""
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([options.command, options.url, options.env, options.cwd, options.token_env])
    if key not in servers:
        servers[key] = McpServer(options)
    return servers[key]


class McpServer:
    """A server with the connection that new calls use."""

    def __init__(self, options: McpOptions):
        self.options = options
        self._connection: McpConnection | None = None
        #: Connections that get no new calls and are not closed yet.
        self._retired: set[McpConnection] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[McpConnection]:
        """Provide an open connection for one call. Raises UnreachableFailure if it cannot be opened,
        McpFailure if we ended it because the server sent too much, and what the block raises."""
        if self._connection is not None and self._connection.is_closed:
            self._retire(self._connection)
        if self._connection is None:
            self._connection = McpConnection(self.options)
        connection = self._connection
        connection.calls += 1
        try:
            await connection.wait_opened(self.options.timeout_s)
            yield connection
        except MCPError as error:
            if error.code in _CONNECTION_ERRORS:
                self._retire(connection)
            if connection.close_reason.text is not None:
                raise McpFailure(f"the connection is closed: {connection.close_reason.text}") from error
            raise
        except McpFailure:
            raise
        except BaseException:  # also if the call was cancelled, since the server may hang
            self._retire(connection)
            raise
        finally:
            connection.calls -= 1
            if not connection.calls and connection is not self._connection:
                connection.begin_close()

    async def close(self) -> None:
        """Close all connections, and wait for them as `McpConnection.close` does. A later call opens a new
        one."""
        if self._connection is not None:
            self._retire(self._connection)
        await asyncio.gather(*(connection.close() for connection in self._retired))

    def _retire(self, connection: McpConnection) -> None:
        """Stop using the connection for new calls, and forget it when it is closed."""
        if self._connection is connection:
            self._connection = None
            self._retired.add(connection)
            connection.on_closed(self._retired.discard)


class McpConnection:
    """One connection to a server, in a task of its own."""

    def __init__(self, options: McpOptions):
        #: Number of calls that use the connection.
        self.calls = 0
        self._options = options
        self._close_request = asyncio.Event()
        # To cancel the task would also interrupt ending the process of the server.
        self._opening = anyio.CancelScope()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # The exception is retrieved here, since there may be no call that waits for it.
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._schemas: dict[str, dict[str, Any]] | None = None
        self._validators: dict[str, ArgumentValidator] = {}
        #: Why the connection was ended, if the server sent too much.
        self.close_reason = CloseReason()
        self._error_status: int | None = None
        self._task = asyncio.ensure_future(self._run())

    @property
    def client(self) -> Client:
        """The client, once `wait_opened` has returned."""
        return self._opened.result()

    @property
    def is_closed(self) -> bool:
        """Whether no more calls can be made, because it is closed or being closed."""
        return self._task.done() or self._close_request.is_set()

    async def wait_opened(self, limit_s: float) -> None:
        """Wait until the connection is open. Raises UnreachableFailure if that fails or takes more than
        `limit_s` seconds."""
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), limit_s)
        except TimeoutError:
            self.begin_close()
            raise UnreachableFailure(f"it did not open a connection within {limit_s:g} s") from None

    async def list_tools(self) -> list[Any]:
        """Return the tools of the server, as the package mcp describes them. Raises McpFailure if there are
        too many, MCPError and TimeoutError."""
        limit_s = self._options.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._all_tools()
        except TimeoutError:
            raise TimeoutError(f"the server did not list its tools within {limit_s:g} s") from None

    async def _all_tools(self) -> list[Any]:
        """Return the tools on all pages of the server's list. Raises McpFailure if there are too many."""
        tools: list[Any] = []
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            tools += page.tools
            if len(tools) > _MAX_TOOLS:
                raise McpFailure(f"it lists more than {_MAX_TOOLS:,} tools")
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise McpFailure(f"its list of tools has more than {_MAX_PAGES} pages")

    async def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the schemas of the arguments by the names of the tools. Raises what `list_tools` raises."""
        if self._schemas is None:
            self._schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
        return self._schemas

    async def fault(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments of the tool `name`, by the server's schema, or None. Raises
        McpFailure if that is not a JSON schema, and what `schemas` raises."""
        schemas = await self.schemas()
        try:
            if name not in self._validators:
                self._validators[name] = ArgumentValidator(schemas[name], foreign=True)
            return await self._validators[name].checked(arguments)
        except DataError as error:
            raise McpFailure(f"the server's schema of {name!r} is not a JSON schema: {error}") from None

    def on_closed(self, callback: Callable[[McpConnection], object]) -> None:
        """Call `callback` with this connection once it is closed."""
        self._task.add_done_callback(lambda _: callback(self))

    def begin_close(self) -> None:
        """Begin to close the connection; if it is still being opened, give that up."""
        self._close_request.set()
        if not self._opened.done():
            self._opening.cancel()

    async def close(self) -> None:
        """Close the connection, and wait until it is closed, at most `_CLOSING_S` seconds."""
        self.begin_close()
        await asyncio.wait({self._task}, timeout=_CLOSING_S)

    async def _run(self) -> None:
        """Run the task of the connection: open it, wait until it should be closed, and close it."""
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._opening)
                client = await stack.enter_async_context(await self._client(stack))
                if not self._opened.done():
                    self._opened.set_result(client)
                await self._close_request.wait()
        except BaseException as error:  # the package mcp raises many types, and groups of them
            self._note_end(_one_line(error))
            if not isinstance(error, Exception):
                raise
        else:
            self._note_end("the connection was given up")
        finally:
            self._close_request.set()

    async def _client(self, stack: AsyncExitStack) -> Client:
        """Return the client of the package mcp over our streams, not yet connected."""
        options = self._options
        if options.command is not None:
            command = bind_to_parent(options.command, options.cwd)
            environment = {name: os.environ[name] for name in options.env if name in os.environ}
            return Client(stdio_streams(command, environment, options.cwd, self.close_reason))
        assert options.url is not None  # make_mcp requires a command or a url
        # Proxies from the environment are not used, since they would get the token.
        http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **bearer_header(options.token_env)},
            timeout=httpx2.Timeout(options.timeout_s, read=max(options.timeout_s, _STREAM_S)),
            trust_env=False,
            transport=BoundedTransport(trust_env=False),
            event_hooks={"response": [self._note_status]},
        )
        await stack.enter_async_context(http)
        return Client(http_streams(options.url, http))

    async def _note_status(self, response: httpx2.Response) -> None:
        """Remember the status of an error, which the package mcp does not mention."""
        if response.status_code >= 400:
            self._error_status = response.status_code

    def _note_end(self, reason: str) -> None:
        """Report why the connection ended: to the calls that wait until it is open, or in the log if it was
        open."""
        if not self._opened.done():
            status = self._error_status
            reason = reason if status is None else f"HTTP {status}: {reason}"
            self._opened.set_exception(UnreachableFailure(reason, status))
        elif not self._close_request.is_set():
            logger.warning("an MCP server's connection ended: %s", reason)


def _one_line(error: BaseException) -> str:
    """Return an exception, or the first one in a group of them, on one line."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]
    return terminal_text(f"{type(error).__name__}: {error}")
