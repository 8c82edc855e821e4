"""uvicorn's HTTP protocol with limits on connections and request heads.

uvicorn passes a request to the app when its headers are complete, and waits for the headers, and for the
body, without a time limit. So it is here, below every middleware and the token check, that

- the bytes and the number of a request's headers are limited (431), trailers and chunk extensions included;
- headers, and then the body, must be complete within `read_timeout_s` each (408); a connection that has
  never sent a request is closed silently;
- an answer is dropped when the client has read none of it for `read_timeout_s`;
- the number of connections is limited to `max_connections`: the next one gets 503 and is closed.

While the app works on a request no time limit applies here; the app has its own deadline.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from retrieval_server.server.limits import ConnectionLimits

#: Bytes of a request's line, headers and trailers. Browsers with many cookies send some 10,000.
MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 100


def limited_protocol(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """The protocol class for `uvicorn.Config(http=...)`."""
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), {"limits": limits})


class _HeadRefused(Exception):
    """Ends the parsing of a request's head; httptools turns it into an error of its own."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection, with its limits; the methods without an underscore are called by others."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False  # which part of a request is arriving
        self._head_bytes = self._header_count = 0  # of this request, parsed so far
        self._unparsed = 0  # bytes since the parser last completed an element
        self._refusal: tuple[int, str, str] | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too_many_connections", "the server has as many connections as it takes")
        else:
            self._start_read_timer()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._read_timer is None:  # the first bytes after an answer; uvicorn's own clock stops at them
            self._start_read_timer()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed - len(data) > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "headers_too_large", f"the headers are larger than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._in_head = True
        self._unparsed = self._head_bytes = self._header_count = 0
        if self._read_timer is None:  # it arrived together with the end of the one before
            self._start_read_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url), 0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value), 1)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._unparsed = False, True, 0
        self._start_read_timer()  # the body has its own time
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unparsed = False, 0
        self._stop_read_timer()
        super().on_message_complete()

    # Called by uvicorn.

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "bad_request", "this is not HTTP as the server speaks it")))

    # The limits.

    def _count(self, size: int, headers: int) -> None:
        """Count bytes and headers of a request's head. Raises _HeadRefused beyond the limits."""
        self._head_bytes += size
        self._header_count += headers
        if self._head_bytes > MAX_HEAD_BYTES:
            reason = f"the headers are larger than {MAX_HEAD_BYTES} bytes"
        elif self._header_count > MAX_HEADERS:
            reason = f"there are more than {MAX_HEADERS} headers"
        else:
            return
        self._refusal = (431, "headers_too_large", reason)
        raise _HeadRefused(reason)

    def _start_read_timer(self) -> None:
        self._stop_read_timer()
        self._read_timer = self._later(self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        """Refuse the request that has not arrived, or close a connection that has none."""
        self._read_timer = None
        # Not the client's fault: the app reads the body slowly, or an earlier request is still being
        # answered.
        if self.flow.read_paused or (self._answering and not self._in_body):
            self._start_read_timer()
        elif self._in_head or self._in_body:
            seconds = self.limits.read_timeout_s
            self._refuse(408, "timeout", f"the request was not complete within {seconds:g} s")
        else:
            self._close()

    @property
    def _answering(self) -> bool:
        """Whether the app is answering a request."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_write_timer(self, unsent: int | None = None) -> None:
        """Drop the connection if the client reads nothing; `unsent`: bytes at the last check."""
        self._stop_write_timer()
        waiting = self.transport.get_write_buffer_size()
        if unsent is not None and waiting >= unsent:
            self.transport.abort()
        else:
            self._write_timer = self._later(lambda: self._start_write_timer(waiting))

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _later(self, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(self.limits.read_timeout_s, action)

    def _refuse(self, status: int, error: str, reason: str) -> None:
        """Answer and close; close without an answer if it would be taken for that of another request."""
        # Within a body the cycle is that of this request, otherwise that of the one before.
        silent = self.cycle.response_started or self.pipeline if self._in_body else self._answering
        if not silent:
            body = json.dumps({"error": error, "reason": reason}).encode()
            headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + headers % len(body) + body)
        self._close()

    def _close(self) -> None:
        """Close when everything is sent, or when the client has stopped reading."""
        self._stop_read_timer()
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._start_write_timer()
