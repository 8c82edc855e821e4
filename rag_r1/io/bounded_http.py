"""An HTTP client that limits the size and the time of a response.

httpx's client reads whatever a server sends: gigabytes, a byte now and then for ever, a few bytes that unpack
to gigabytes. So here a body has a limit of bytes and of time, and is not decompressed. The head has a limit
of time, too: httpx limits only the wait for each of its bytes, and there can be a hundred thousand. A
response beyond a limit raises one of httpx's errors, as a server that is gone does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

#: Most bytes of a body. As JSON of empty lists, so many become about 400 MB.
MAX_BYTES = 16 << 20


def bounded_http_client(
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    base_url: str = "",
    limit: int = MAX_BYTES,
    body_s: float | None = None,
) -> httpx.Client:
    """Returns a client whose bodies have at most `limit` bytes. `timeout_s`: seconds of each wait of a
    request; a head must be there after twice as long. `body_s`: seconds for all of a body (default:
    `timeout_s`). The client uses no proxy of the environment and follows no redirect. Each request has its
    own connection."""
    return httpx.Client(
        base_url=base_url,
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        transport=_BoundedTransport(timeout_s, limit, timeout_s if body_s is None else body_s),
        trust_env=False,
    )


def is_web_page(headers: Mapping[str, str]) -> bool:
    """Returns whether the headers of a response are those of HTML: then no server of ours has answered."""
    return headers.get("Content-Type", "").lower().startswith("text/html")


class _BoundedTransport(httpx.BaseTransport):
    """Sends each request on a connection of its own, and gives its response a `_BoundedBody`."""

    def __init__(self, timeout_s: float, limit: int, body_s: float):
        # Connections are not used again: a late response is ended by shutting down the connection opened for
        # it.
        no_reuse = httpx.Limits(max_keepalive_connections=0)
        self._inner: httpx.BaseTransport = httpx.HTTPTransport(limits=no_reuse)
        self._timeout_s, self._limit, self._body_s = timeout_s, limit, body_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._send(request)
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
            response.close()
            raise httpx.RemoteProtocolError("a compressed answer, which was not asked for", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)  # HTTPTransport gives no other
        response.stream = _BoundedBody(response.stream, request, self._body_s, self._limit)
        return response

    def _send(self, request: httpx.Request) -> httpx.Response:
        """Returns the response as soon as its head is there. Raises ReadTimeout, and ends the connection, if
        that takes too long."""
        limit_s = 2 * self._timeout_s  # as long again as the connection may take
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
    """Shuts down the connection of one request when it is late; `trace` follows httpx's events."""

    def __init__(self) -> None:
        self.is_late = False
        self._socket: socket.socket | None = None  # with TLS a second one, which replaces the first

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            # What was late during the handshake, when neither socket could be shut down, is late now.
            if self.is_late:
                self._shut_down()

    def expire(self) -> None:
        self.is_late = True
        self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_RDWR)


class _BoundedBody(httpx.SyncByteStream):
    """The parts of a body, until it has more than `limit` bytes or took more than `timeout_s` seconds."""

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
