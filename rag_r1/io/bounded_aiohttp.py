"""Sessions of aiohttp that unpack nothing, and bodies of a limited size.

bounded_http.py is the same for clients that block. Redirects are the caller's: `allow_redirects=False`, since
they would carry texts and keys to an address that nobody has given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from rag_r1.io.errors import TooLargeError


def bounded_session(
    headers: Mapping[str, str], timeout_s: float | None, **more: Any
) -> aiohttp.ClientSession:
    """A session for the running event loop. `headers` may hold secrets; `timeout_s`: for a whole request, its
    body included (None: the caller limits it); `more`: further options of aiohttp's session."""
    return aiohttp.ClientSession(
        # No compression: a few bytes could expand to gigabytes.
        headers={"Accept-Encoding": "identity", **headers},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        **more,
    )


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The body of a response. Raises TooLargeError beyond `max_bytes`, and the errors of connections."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            response.close()  # what else is sent is not read
            raise TooLargeError(f"it has more than {max_bytes} bytes")
    return bytes(body)
