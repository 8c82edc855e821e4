"""An HTTP client that limits the size and the duration of a response.

httpx reads whatever a server sends: gigabytes, an endless trickle of bytes, or a few bytes that decompress to
gigabytes. This client limits the bytes and the time of a body, and does not decompress it. It also limits the
time of the header section, since httpx limits only the wait for each of its bytes. A response beyond a limit
raises one of httpx's errors, like a server that is gone.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

from rag_r1.io.bounded_json import read_json

#: Default limit on the bytes of a body. As JSON of empty lists, they take about 400 MB once parsed.
MAX_BYTES = 16 << 20
#: Limits of a short answer (`get_body`, `get_json`), in bytes and JSON values.
SHORT_ANSWER_BYTES = 256 << 10
SHORT_ANSWER_VALUES = 20_000


def bounded_http_client(
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    base_url: str = "",
    limit: int = MAX_BYTES,
    body_s: float | None = None,
) -> httpx.Client:
    """Return a client whose response bodies have at most `limit` bytes.

    - `timeout_s`: seconds of each single wait; the header section must be complete after twice as long
    - `body_s`: seconds for a whole body; None for `timeout_s`

    The client uses no proxy of the environment, follows no redirect, and opens a new connection for each
    request.
    """
    return httpx.Client(
        base_url=base_url,
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        transport=_BoundedTransport(timeout_s, limit, timeout_s if body_s is None else body_s),
        trust_env=False,
    )


def is_web_page(headers: Mapping[str, str]) -> bool:
    """Return whether the headers of a response announce HTML, which no API of this project sends."""
    return headers.get("Content-Type", "").lower().startswith("text/html")


def get_json(client: httpx.Client, url: str) -> tuple[int, Any]:
    """Return the status and the JSON of the short answer to a GET; the JSON is None if it is missing, broken
    or too large. Raises httpx's errors, and DecodingError for a web page, since many servers answer every
    request with one."""
    status, body = get_body(client, url)
    try:
        return status, None if body is None else read_json(body, SHORT_ANSWER_VALUES)
    except (ValueError, RecursionError):
        return status, None


def get_body(client: httpx.Client, url: str, payload: Any = None) -> tuple[int, bytes | None]:
    """Return the status and the body of a short answer; the body is None if it is too long. The request is a
    GET or, with a `payload`, a POST of that JSON. Raises the errors of `get_json`."""
    body = b""
    with client.stream("GET" if payload is None else "POST", url, json=payload) as answer:
        if answer.status_code == 200 and is_web_page(answer.headers):
            raise httpx.DecodingError("a web page", request=answer.request)
        for piece in answer.iter_raw():  # without decompression
            body += piece
            if len(body) > SHORT_ANSWER_BYTES:
                return answer.status_code, None
    return answer.status_code, body


class _BoundedTransport(httpx.BaseTransport):
    """Sends each request on a new connection, and limits the body of its response."""

    def __init__(self, timeout_s: float, limit: int, body_s: float):
        # Connections are not reused, because a late response is ended by shutting down its connection.
        no_reuse = httpx.Limits(max_keepalive_connections=0)
        self._inner: httpx.BaseTransport = httpx.HTTPTransport(limits=no_reuse)
        self._timeout_s, self._limit, self._body_s = timeout_s, limit, body_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._send(request)
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
            response.close()
            raise httpx.RemoteProtocolError("a compressed answer, which was not asked for", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)  # as in every response of HTTPTransport
        response.stream = _BoundedBody(response.stream, request, self._body_s, self._limit)
        return response

    def _send(self, request: httpx.Request) -> httpx.Response:
        """Return the response as soon as its header section is complete. Raises ReadTimeout, and shuts down
        the connection, if that takes too long."""
        limit_s = 2 * self._timeout_s  # one timeout for connecting, and one for the response
        deadline = _ConnectionDeadline()
        request.extensions = {**request.extensions, "trace": deadline.trace}
        timer = threading.Timer(limit_s, deadline.expire)
        timer.daemon = True
        timer.start()
        try:
            return self._inner.handle_request(request)
        except httpx.TransportError as error:
            if deadline.is_late:
                raise httpx.ReadTimeout(f"no answer within {limit_s:g} s", request=request) from error
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        self._inner.close()


class _ConnectionDeadline:
    """Shuts down the connection of one request when it is late. `trace` receives httpx's events."""

    def __init__(self) -> None:
        #: Whether the deadline has passed.
        self.is_late = False
        self._socket: socket.socket | None = None  # replaced by a second one if TLS is used

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the socket of the connection when httpx reports that it is connected."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            # The deadline may have passed during the handshake, when no socket could be shut down.
            if self.is_late:
                self._shut_down()

    def expire(self) -> None:
        """Shut down the connection, now or as soon as it has a socket."""
        self.is_late = True
        self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the connection has ended already
                self._socket.shutdown(socket.SHUT_RDWR)


class _BoundedBody(httpx.SyncByteStream):
    """Yields the parts of a body until it exceeds `limit` bytes or `timeout_s` seconds."""

    def __init__(self, stream: httpx.SyncByteStream, request: httpx.Request, timeout_s: float, limit: int):
        self._stream, self._request = stream, request
        self._timeout_s, self._limit = timeout_s, limit

    def __iter__(self) -> Iterator[bytes]:
        deadline = time.monotonic() + self._timeout_s
        bytes_left = self._limit
        for part in self._stream:
            bytes_left -= len(part)
            if bytes_left < 0:
                raise httpx.ReadError(f"an answer of more than {self._limit:,} bytes", request=self._request)
            if time.monotonic() > deadline:
                reason = f"an answer that takes more than {self._timeout_s:g} s"
                raise httpx.ReadTimeout(reason, request=self._request)
            yield part

    def close(self) -> None:
        self._stream.close()
