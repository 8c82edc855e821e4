"""An HTTP client for what is asked once and read whole: a server's description, a test search, documents.

It is httpx's client, which reads whatever a server sends: gigabytes, a byte now and then for ever, a few
bytes that unpack to gigabytes. So a body has a limit of bytes and of time here, and is not decompressed. What
exceeds them raises one of httpx's errors, as a server that is gone does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import httpx

#: Bytes of a body. As lists of nothing, they become about 400 MB.
MAX_BYTES = 16 << 20


def bounded_client(
    timeout_s: float, headers: Mapping[str, str] | None = None, base_url: str = "", most: int = MAX_BYTES
) -> httpx.Client:
    """A client whose bodies have at most `most` bytes. `timeout_s`: for each wait of a request and for all
    of a body. It uses no proxy of the environment and follows no redirect."""
    return httpx.Client(
        base_url=base_url,
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout_s,
        transport=_Bounded(timeout_s, most),
        trust_env=False,
    )


class _Bounded(httpx.BaseTransport):
    def __init__(self, timeout_s: float, most: int):
        self._inner, self._timeout_s, self._most = httpx.HTTPTransport(), timeout_s, most

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
            response.close()
            raise httpx.RemoteProtocolError("a compressed answer, which was not asked for", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Body(response.stream, request, self._timeout_s, self._most)
        return response

    def close(self) -> None:
        self._inner.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, request: httpx.Request, timeout_s: float, most: int):
        self._stream, self._request, self._timeout_s, self._most = stream, request, timeout_s, most

    def __iter__(self) -> Iterator[bytes]:
        until, left = time.monotonic() + self._timeout_s, self._most
        for part in self._stream:
            left -= len(part)
            if left < 0:
                raise httpx.ReadError(f"an answer of more than {self._most:,} bytes", request=self._request)
            if time.monotonic() > until:
                reason = f"an answer that takes more than {self._timeout_s:g} s"
                raise httpx.ReadTimeout(reason, request=self._request)
            yield part

    def close(self) -> None:
        self._stream.close()
