"""The streams of messages from and to an MCP server, over stdio or streamable HTTP, within limits.

Those over stdio replace the ones of the package mcp; those over HTTP are the package's own, over a transport
that limits responses. Bytes are counted where they arrive, on the stdout of a server or in its HTTP
responses, and each message is checked before the package creates objects from it (limits.py). A message
beyond the limits ends the stdio connection or the HTTP request.

The schemas of results are removed from a server's list of tools: nobody reads them, and the package would
check results against them on the event loop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from rag_r1.io.errors import TooLargeError
from rag_r1.tools.mcp.limits import (
    MAX_MESSAGE_BYTES,
    EventChecker,
    LineSplitter,
    TrafficAllowance,
    check_message,
    check_size,
)
from rag_r1.tools.mcp.server_output import copy_stderr

#: Seconds for a server to end after its stdin was closed, and again after SIGTERM. A quarter of them is
#: enough for the ends of its pipes.
_END_S = 2.0


class CloseReason:
    """Why this side has ended the connection to a server."""

    #: The reason in words; None if this side has not ended it.
    text: str | None = None


@asynccontextmanager
async def stdio_streams(
    command: list[str], environment: dict[str, str], folder: str | None, reason: CloseReason
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server in its own session; yields the streams that the client of the package reads and writes,
    and ends the server after the block. If the server is ended because it sent too much, `reason` says so.
    Raises OSError if the server cannot be started."""
    process = await anyio.open_process(
        command, env=get_default_environment() | environment, cwd=folder, start_new_session=True
    )
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    allowance, write_end, stderr_end = TrafficAllowance(), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_stdout, process, incoming, allowance, reason)
        tasks.start_soon(_write_stdin, process, outgoing, incoming, allowance, write_end)
        tasks.start_soon(copy_stderr, process.stderr, stderr_end)
        try:
            yield ResultSchemaFilter(received), sent
        finally:
            with anyio.CancelScope(shield=True):
                received.close()  # drops what still arrives, so that the server can end
                sent.close()
                with anyio.move_on_after(_END_S / 4):
                    await write_end.wait()
                await _end_process(process, stderr_end)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def http_streams(url: str, client: httpx2.AsyncClient) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the streams of streamable HTTP. The transport of `client` must be a BoundedTransport."""
    inner = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)
    async with inner as (received, sent):
        yield ResultSchemaFilter(received), sent


async def _read_stdout(
    process: Process, incoming: Any, allowance: TrafficAllowance, reason: CloseReason
) -> None:
    """Pass the messages on a server's stdout to `incoming`. Once one is too large, stdout is only drained."""
    assert process.stdout is not None  # anyio.open_process has made a pipe
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        async with incoming:
            try:
                await _forward_messages(process.stdout, incoming, allowance)
            except TooLargeError as error:
                reason.text = f"it was ended, since the server sent too much: {error}"
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # nobody reads the messages any more
        with anyio.CancelScope(shield=True):
            while True:
                await process.stdout.receive()


async def _forward_messages(stdout: Any, incoming: Any, allowance: TrafficAllowance) -> None:
    """Check the messages on a server's stdout, one on each line, and pass them to `incoming`. Raises
    TooLargeError, and anyio's errors when one of the streams ends."""
    lines = LineSplitter()
    while True:
        data = await stdout.receive()
        allowance.spend(n_bytes=len(data))
        for line in lines.feed(data):
            allowance.spend(n_messages=1)
            check_message(line)
            await incoming.send(_parse_message(line))


def _parse_message(line: bytes) -> SessionMessage | Exception:
    """Return the message in a line, or the exception that the client of the package gets in its place."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # The error of the package is not used, because it quotes the line and would be logged.
        return ValueError("the MCP server sent a line that is not a message")


async def _write_stdin(
    process: Process, outgoing: Any, incoming: Any, allowance: TrafficAllowance, write_end: anyio.Event
) -> None:
    """Write our messages to the stdin of a server, and set `write_end` at the end. Each request renews the
    allowance. If stdin cannot be written, `incoming` is closed."""
    assert process.stdin is not None  # anyio.open_process has made a pipe
    try:
        async with outgoing:
            async for message in outgoing:
                if isinstance(message.message, JSONRPCRequest):
                    allowance.renew()
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await incoming.aclose()  # so that the session does not wait for an answer
    finally:
        write_end.set()


async def _end_process(process: Process, stderr_end: anyio.Event) -> None:
    """End a server: close its stdin and, if it does not end then, kill all processes of its session.
    `stderr_end` is set when its stderr ends, which a remaining child process may keep open."""
    for stop in (None, signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            if stop is None and process.stdin is not None:
                await process.stdin.aclose()
            elif stop is not None:
                os.killpg(process.pid, stop)
        with anyio.move_on_after(_END_S):
            # process.wait() would also wait for the end of the pipes, which a child process may keep open.
            while process.returncode is None:
                await anyio.sleep(0.01)
            break
    with anyio.move_on_after(_END_S / 4):
        await stderr_end.wait()
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        if process.stdout is not None:
            await process.stdout.aclose()
    with anyio.move_on_after(_END_S):
        await process.aclose()


class ResultSchemaFilter:
    """A stream of messages that removes the schemas of results from lists of tools."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # such as `aclose`, and `last_context`, which the package reads
        return getattr(self._inner, name)

    async def receive(self) -> Any:
        """Return the next message."""
        return _without_result_schemas(await self._inner.receive())

    def __aiter__(self) -> ResultSchemaFilter:
        return self

    async def __anext__(self) -> Any:
        return _without_result_schemas(await self._inner.__anext__())

    async def __aenter__(self) -> ResultSchemaFilter:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)


def _without_result_schemas(item: Any) -> Any:
    """Remove the schemas of results from an item if it is a list of tools; returns the item."""
    message = getattr(item, "message", None)
    result = message.result if isinstance(message, JSONRPCResponse) else None
    tools = result.get("tools") if isinstance(result, dict) else None
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            tool.pop("outputSchema", None)
    return item


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport that limits the size of responses."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; returns the response. Raises httpx2.ReadError if it is compressed. If it is too
        large, reading it raises httpx2.SSEError or httpx2.StreamError, which the package reports as an error
        of the request."""
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("the MCP server compresses its answer, which was not asked for")
        is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body_type = _BoundedEvents if is_event_stream else _BoundedBody
        response.stream = body_type(response.stream)
        return response


class _BoundedBody(httpx2.AsyncByteStream):
    """A body with one message, which is passed on after it was checked."""

    def __init__(self, inner: Any):
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        try:
            async for chunk in self._inner:
                body += chunk
                check_size(len(body))
            check_message(bytes(body))
        except TooLargeError as error:
            raise httpx2.StreamError(f"the server sent too much: {error}") from None
        yield bytes(body)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedEvents(_BoundedBody):
    """A body of server-sent events, each of which is passed on after it was checked."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        allowance = TrafficAllowance()
        lines, events = LineSplitter(), EventChecker(allowance)
        tail = b""
        try:
            async for chunk in self._inner:
                allowance.spend(n_bytes=len(chunk))
                # Lines may end in CR, LF or both, and CR and LF may arrive in different chunks.
                chunk, tail = (tail + chunk[:-1], b"\r") if chunk.endswith(b"\r") else (tail + chunk, b"")
                full_lines = lines.feed(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
                for line in full_lines:
                    events.feed(line)
                if full_lines:
                    yield b"\n".join([*full_lines, b""])
            ending = lines.feed(b"\n")
            events.feed(ending[0])
            events.feed(b"")
        except TooLargeError as error:
            raise httpx2.SSEError(f"the server sent too much: {error}") from None
        yield ending[0] + b"\n"
