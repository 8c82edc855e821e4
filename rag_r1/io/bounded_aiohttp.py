"""Sessions of aiohttp without decompression, and response bodies of limited size.

bounded_http.py provides the same for blocking clients. aiohttp follows redirects unless a request forbids it,
and a redirect would send texts and keys to an address that the user did not choose. So every caller must pass
`allow_redirects=False`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from rag_r1.io.errors import TooLargeError


def bounded_session(
    headers: Mapping[str, str], timeout_s: float | None, **session_options: Any
) -> aiohttp.ClientSession:
    """Return a session for the running event loop.

    - `headers`: sent with every request; they may contain secrets
    - `timeout_s`: seconds for a whole request including its body; None if the caller limits the time
    - `session_options`: further options of aiohttp
    """
    return aiohttp.ClientSession(
        # No compression: a few bytes could expand to gigabytes.
        headers={"Accept-Encoding": "identity", **headers},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        **session_options,
    )


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the body of a response. Raises TooLargeError if it exceeds `max_bytes`, and aiohttp's
    connection errors."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > max_bytes:
            response.close()  # the remainder is not read
            raise TooLargeError(f"it has more than {max_bytes} bytes")
    return bytes(body)
