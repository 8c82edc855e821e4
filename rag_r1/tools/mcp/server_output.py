"""Bounds the stderr and the log messages of MCP servers, and makes them safe to print.

A server can write anything to stderr, often text from elsewhere; and the package mcp logs parts of faulty
messages, with a traceback each. Both reach the terminal, or the log of a training, so both lose their control
characters here and are cut off when they are too long.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any

import anyio

from rag_r1.io.terminal_text import terminal_lines, terminal_text

#: Most bytes of stderr that are shown for one connection, and longest line.
MAX_STDERR_BYTES, _MAX_LINE_BYTES = 1 << 20, 8192
#: Most lines that the package mcp logs about messages of servers in a minute.
MAX_LOGGED = 100
#: Colours, which honest servers write too.
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_LOGGERS = ("client", "mcp.client.streamable_http", "mcp.shared.jsonrpc_dispatcher")


async def copy_stderr(stream: Any, end: anyio.Event) -> None:
    """Copy the lines of a server's stderr to ours; sets `end` at its end. What is beyond the limit is read,
    so that the server can go on, and thrown away."""
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
                _show(b"(an MCP server's stderr: more than 1 MiB, the rest is not shown)")
                line = b""
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        if line:
            _show(line)
    finally:
        end.set()


def _show(line: bytes) -> None:
    """Print a line of a server without its control characters."""
    text = terminal_lines(_COLOUR.sub("", line[:_MAX_LINE_BYTES].decode("utf-8", "replace")))
    # Not sys.stderr, which may be another stream by now, or closed.
    stream = sys.__stderr__ or sys.stderr
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


class _LogLimit(logging.Filter):
    """Makes a record one printable line without a traceback; drops those beyond MAX_LOGGED in a minute."""

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
    """Put the filter on the loggers with which the package mcp reports faulty messages."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(filter_, _LogLimit) for filter_ in logger.filters):
            logger.addFilter(_LogLimit())
