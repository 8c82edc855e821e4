"""Sessions of aiohttp that unpack nothing, and bodies of a limited size.

bounded_http.py is the same for clients that block. aiohttp follows redirects unless a request forbids them.
So each caller passes `allow_redirects=False`: a redirect would carry texts and keys to an address that nobody
has given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from rag_r1.io.errors import TooLargeError


def bounded_session(
    headers: Mapping[str, str], timeout_s: float | None, **session_options: Any
) -> aiohttp.ClientSession:
    """Returns a session for the running event loop. `headers` may hold secrets; `timeout_s`: seconds for a
    whole request, its body included (None: the caller limits it); `session_options`: aiohttp's further
    options."""
    return aiohttp.ClientSession(
        # No compression: a few bytes could expand to gigabytes.
        headers={"Accept-Encoding": "identity", **headers},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        **session_options,
    )


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Returns the body of a response. Raises TooLargeError beyond `max_bytes`, and aiohttp's errors of
    connections."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            response.close()  # the remainder is not read
            raise TooLargeError(f"it has more than {max_bytes} bytes")
    return bytes(body)
