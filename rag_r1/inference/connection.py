"""HTTP to a model server: one bounded request, for all clients of language models.

What comes back is data: it is limited in size and time, is not decompressed, and redirects are not followed,
since they would carry texts and key to an address that nobody has given. A request is sent once; the caller
decides what is repeated (rag_r1/io/retry.py).
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
    """An answer with its undecoded body; a stream is assembled into one body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ModelServer:
    """The connections to a model server; belongs to the event loop of its first request.

    `headers` may hold a key; `timeout_s`: for one request; `trust_env`: whether HTTPS_PROXY and the like are
    used; `quotes_errors`: whether messages quote the errors of connections, which may hold what the server
    has sent.
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
        """Posts JSON; returns the answer, whatever its status. `on_text`: gets each piece of a streamed
        answer (streaming.py). Raises TransientError if there is no answer within the time and `limits`."""
        try:
            return await asyncio.wait_for(self._post(path, content, limits, on_text), self.timeout_s)
        except TimeoutError as error:  # before OSError, of which it is a kind
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
        """The answer, without a limit of time. Raises TransientError if it exceeds `limits`, and the errors
        of connections."""
        async with self._connected().post(self.base + path, data=content, allow_redirects=False) as response:
            try:
                body = await assemble_body(response, limits, on_text)
            except (ValueError, RecursionError) as error:
                response.close()
                raise TransientError(f"a useless answer: {error}") from error
            return HttpResponse(response.status, response.headers, body)

    def _connected(self) -> aiohttp.ClientSession:
        """The session, made at the first request. It is aiohttp's, since the pool of httpx looks through all
        its connections for each request: with 250 in flight that took longer than vLLM's work for them."""
        if self._session is None:
            self._session = bounded_session(
                {"Content-Type": "application/json", **self._headers},
                None,  # `post` has a time-out
                # The caller limits the number of requests. uvicorn closes a connection that was idle for 5 s.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                trust_env=self._trust_env,
            )
        return self._session
