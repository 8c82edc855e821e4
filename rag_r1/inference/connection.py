"""Sends one bounded HTTP request to a model server; used by all clients of language models.

A response is untrusted data: its size and time are limited, it is not decompressed, and redirects are not
followed, since they would send texts and the key to an address that the user did not choose. A request is
sent once, and the caller decides whether it is repeated (rag_r1/io/retry.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from rag_r1.inference.response_limits import ResponseLimits
from rag_r1.inference.streaming import OnText, assemble_body
from rag_r1.io.bounded_aiohttp import bounded_session
from rag_r1.io.retry import TransientError


@dataclass(frozen=True)
class HttpResponse:
    """A response with its undecoded body; a streamed response is assembled into one body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServerConnections:
    """The connections to a model server, which belong to the event loop of the first request.

    - `base`: its address, to which the path of a request is appended
    - `headers`: sent with every request; they may contain a key
    - `timeout_s`: seconds that one request may take
    - `trust_env`: whether proxy settings of the environment, such as HTTPS_PROXY, are used
    - `quotes_errors`: whether messages quote connection errors, which may contain text sent by the server
    """

    def __init__(
        self,
        base: str,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        trust_env: bool = False,
        quotes_errors: bool = True,
    ):
        self.base, self.timeout_s = base, timeout_s
        self._headers, self._trust_env, self._quotes_errors = dict(headers), trust_env, quotes_errors
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, path: str, content: bytes, limits: ResponseLimits, on_text: OnText | None = None
    ) -> HttpResponse:
        """Post JSON and return the response, whatever its status. With `on_text` each piece of a streamed
        answer is passed on (streaming.py). Raises TransientError if no response arrives in time and within
        `limits`."""
        try:
            return await asyncio.wait_for(self._post(path, content, limits, on_text), self.timeout_s)
        except TimeoutError as error:  # before OSError, its base class
            raise TransientError(f"no answer within {self.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            detail = f": {error}" if self._quotes_errors else ""
            raise TransientError(f"no answer: {type(error).__name__}{detail}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self, path: str, content: bytes, limits: ResponseLimits, on_text: OnText | None
    ) -> HttpResponse:
        """Post JSON and return the response, without a time limit. Raises TransientError if the response
        exceeds `limits`, and aiohttp's connection errors."""
        async with self._connected().post(self.base + path, data=content, allow_redirects=False) as response:
            try:
                body = await assemble_body(response, limits, on_text)
            except (ValueError, RecursionError) as error:
                response.close()
                raise TransientError(f"a useless answer: {error}") from error
            return HttpResponse(response.status, response.headers, body)

    def _connected(self) -> aiohttp.ClientSession:
        """Return the session, which is created for the first request. aiohttp is used because the connection
        pool of httpx searches all its connections for each request: with 250 requests in flight this took
        longer than vLLM's own work for them."""
        if self._session is None:
            self._session = bounded_session(
                {"Content-Type": "application/json", **self._headers},
                None,  # `post` has a time-out
                # The caller limits the number of requests. uvicorn closes a connection after 5 s without one.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                trust_env=self._trust_env,
            )
        return self._session
