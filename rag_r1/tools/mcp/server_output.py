"""Limits what MCP servers write to stderr and to the log, and makes it safe to print.

A server can write anything to stderr, often text from elsewhere, and the package mcp logs parts of faulty
messages, each with a traceback. Both reach the terminal or the log of a training. So control characters are
removed here, and output beyond a limit is dropped.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from contextlib import suppress
from typing import Any

import anyio

from rag_r1.io.terminal_text import terminal_lines, terminal_text

#: Most bytes of stderr that are shown for one connection, and the longest line.
MAX_STDERR_BYTES, _MAX_LINE_BYTES = 1 << 20, 8192
#: Most lines in a minute that the package mcp may log about the messages of servers.
MAX_LOGGED = 100
#: Terminal colours, which well-behaved servers write as well.
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
#: The loggers with which the package mcp reports the messages of servers.
_LOGGERS = ("client", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")


async def copy_stderr(stream: Any, end: anyio.Event) -> None:
    """Copy the lines of a server's stderr to our own, and set `end` when it ends. Output beyond the limit is
    read and dropped, so that the server is not blocked."""
    remaining_bytes, line = MAX_STDERR_BYTES, b""
    try:
        while True:
            data = await stream.receive()
            if remaining_bytes < 0:
                continue
            remaining_bytes -= len(data)
            *lines, line = (line + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if len(line) > _MAX_LINE_BYTES:
                lines, line = [*lines, line], b""
            for full_line in lines:
                _show(full_line)
            if remaining_bytes < 0:
                _show(b"(an MCP server wrote over %d MiB: the rest is not shown)" % (MAX_STDERR_BYTES >> 20))
                line = b""
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        if line:
            _show(line)
    finally:
        end.set()


def _show(line: bytes) -> None:
    """Print a line of a server without control characters, unless our own stderr cannot be written."""
    text = terminal_lines(_COLOUR.sub("", line[:_MAX_LINE_BYTES].decode("utf-8", "replace")))
    # Not sys.stderr, which may have been replaced or closed by now.
    stream = sys.__stderr__ or sys.stderr
    encoding = stream.encoding or "utf-8"
    with suppress(OSError, ValueError):  # closed or full, which must not end the connection
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


class _LogLimit(logging.Filter):
    """Turns a log record into one printable line without a traceback, and drops records beyond MAX_LOGGED in
    a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._since, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._since > 60:
            self._since, self._count = now, 0
        self._count += 1
        record.msg, record.args = terminal_text(record.getMessage(), 300), ()
        record.exc_info = record.exc_text = record.stack_info = None
        return self._count <= MAX_LOGGED


def limit_logs() -> None:
    """Limit what the package mcp logs about the messages of servers. A second call changes nothing."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(filter_, _LogLimit) for filter_ in logger.filters):
            logger.addFilter(_LogLimit())
