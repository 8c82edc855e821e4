"""Extends uvicorn's HTTP protocol with limits on connections, request headers and reading times.

uvicorn waits without a time limit for the headers and the body of a request, and passes the request to the
app only when its headers are complete. Middleware and the token check would therefore be too late, so this
class enforces these limits for each connection:

- The size and the number of a request's headers are limited (431), including trailers and chunk extensions.
- The headers, and then the body, must be complete within `read_timeout_s` each (408). A connection that has
  never sent a request is closed silently.
- A response is dropped if the client reads nothing of it for `read_timeout_s`.
- The number of connections is limited to `max_connections`. A further one is answered with 503 and closed.

While the app processes a request no time limit applies here; the app has a deadline for that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from retrieval_server.errors import RequestError
from retrieval_server.server.limits import ConnectionLimits

#: Bytes of a request's line, headers and trailers. Browsers with many cookies send about 10,000.
MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 100


def limited_protocol(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """Return the protocol class with these limits, for `uvicorn.Config(http=...)`."""
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), {"limits": limits})


class _HeadRefused(Exception):
    """Stops the parsing of a request's headers; httptools wraps it in one of its errors."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection with its limits. The event loop, the parser and uvicorn call its public methods."""

    #: Set by `limited_protocol`.
    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False  # which part of a request is arriving
        self._head_bytes = self._header_count = 0  # of the current request, as far as it is parsed
        self._unparsed = 0  # bytes since the parser last completed an element
        #: The error with which the current request is refused.
        self._refusal: RequestError | None = None

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
        if self._read_timer is None:  # the first bytes after a response, which end uvicorn's keep-alive timer
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
        if self._read_timer is None:  # the request arrived together with the end of the previous one
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
        self._start_read_timer()  # the time for the body starts now
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
        error = self._refusal or RequestError(400, "bad_request", "this is not HTTP as the server speaks it")
        self._refuse(error.status, error.error, error.reason)

    # The limits.

    def _count(self, size: int, headers: int) -> None:
        """Count bytes and headers of the current request. Raises _HeadRefused if a limit is exceeded."""
        self._head_bytes += size
        self._header_count += headers
        if self._head_bytes > MAX_HEAD_BYTES:
            reason = f"the headers are larger than {MAX_HEAD_BYTES} bytes"
        elif self._header_count > MAX_HEADERS:
            reason = f"there are more than {MAX_HEADERS} headers"
        else:
            return
        self._refusal = RequestError(431, "headers_too_large", reason)
        raise _HeadRefused(reason)

    def _start_read_timer(self) -> None:
        self._stop_read_timer()
        self._read_timer = self._call_after_timeout(self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        """Refuse a request that has not arrived completely, or close a connection without a request."""
        self._read_timer = None
        # The client is not at fault if the app reads the body slowly or still answers an earlier request.
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

    def _start_write_timer(self, previously_unsent: int | None = None) -> None:
        """Check regularly that the client reads, and drop the connection if it does not.

        `previously_unsent` is the number of unsent bytes at the last check.
        """
        self._stop_write_timer()
        unsent = self.transport.get_write_buffer_size()
        if previously_unsent is not None and unsent >= previously_unsent:
            self.transport.abort()
        else:
            self._write_timer = self._call_after_timeout(lambda: self._start_write_timer(unsent))

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _call_after_timeout(self, action: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(self.limits.read_timeout_s, action)

    def _refuse(self, status: int, error: str, reason: str) -> None:
        """Answer and close the connection.

        No answer is sent if the client would take it for the response to another request.
        """
        # While a body arrives, the cycle belongs to this request, otherwise to the previous one.
        is_ambiguous = self.cycle.response_started or self.pipeline if self._in_body else self._answering
        if not is_ambiguous:
            body = json.dumps({"error": error, "reason": reason}).encode()
            headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + headers % len(body) + body)
        self._close()

    def _close(self) -> None:
        """Close the connection when everything is sent, or when the client has stopped reading."""
        self._stop_read_timer()
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._start_write_timer()
