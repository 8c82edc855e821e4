"""A JSON client for tools that call other people's servers.

Answers are treated as hostile data: they are limited in size and not decompressed, and redirects are errors.
The client sends each request once, since the tool executor retries failed calls
(rag_r1/agent/tool_executor.py). Tokens are read from the environment variable that an option names
(secret_option.py). They are sent in a header to the address of a request only, and never appear in a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from rag_r1.io.bounded_aiohttp import bounded_session, read_body
from rag_r1.io.bounded_json import read_json
from rag_r1.io.errors import TooLargeError

#: Largest answer that is read, in bytes.
MAX_ANSWER_BYTES = 16 << 20
#: Most JSON values of an answer.
MAX_VALUES = 500_000


class HttpFailure(Exception):
    """Raised if a server gave no usable answer. The message does not contain the request."""


class HttpRefusal(HttpFailure):
    """Raised if the server did not accept the request (400 or 422). The message is the beginning of its
    answer, on one line."""


class JsonClient:
    """A client of servers that answer with JSON; bound to the event loop of its first request. `headers` may
    contain secrets, and `timeout_s` limits the seconds of a whole request."""

    def __init__(self, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0):
        self._headers, self._timeout_s = dict(headers or {}), timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, url: str, *, json: Any = None, data: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request, whose body is `json` or the form `data`; returns the JSON of the answer. Raises
        HttpFailure, and HttpRefusal for status 400 or 422."""
        if self._session is None or self._session.closed:
            headers = {"Accept": "application/json", **self._headers}
            self._session = bounded_session(headers, self._timeout_s, cookie_jar=aiohttp.DummyCookieJar())
        try:
            sent = self._session.request(method, url, json=json, data=data, allow_redirects=False)
            async with sent as response:
                status, body = response.status, await read_body(response, MAX_ANSWER_BYTES)
        except TooLargeError:
            raise HttpFailure(f"its answer has more than {MAX_ANSWER_BYTES >> 20} MiB") from None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            text = f"no answer from the server ({type(error).__name__}): check its address and that it runs"
            raise HttpFailure(text) from None
        if status in (400, 422):
            raise HttpRefusal(" ".join(body[:2000].decode("utf-8", "replace").split())[:300])
        if status != 200:
            raise HttpFailure(f"HTTP {status}")
        try:
            return read_json(body, MAX_VALUES)
        except TooLargeError as error:
            raise HttpFailure(f"its answer is too large: {error}") from None
        except (ValueError, RecursionError):
            raise HttpFailure("its answer is not JSON") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
