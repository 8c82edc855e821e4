"""The client of one web engine, with pooled connections, time-outs, retries and a circuit breaker.

An attempt ends in one of three ways:

- with an answer;
- with a failure that another attempt may overcome (no connection, time-out, 429, 5xx). It is retried after a
  doubling back-off with jitter, and not before the time in `Retry-After` has passed;
- with a permanent refusal (a bad key, a query that the engine rejects), which is reported at once.

A request that the breaker holds back waits if the pause is not longer than the time-out. If the pause is
longer, or the engine is down, the request fails at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import unicodedata
import zlib
from collections.abc import Mapping

import aiohttp

from retrieval_server.errors import SearchFailedError
from retrieval_server.json_limits import read_json
from retrieval_server.web import retry
from retrieval_server.web.circuit_breaker import CircuitBreaker
from retrieval_server.web.engines import WebDocument, WebEngine
from retrieval_server.web.options import WebOptions

log = logging.getLogger(__name__)
MAX_ANSWER_BYTES = 8 * 2**20  # of an answer, also after it is unpacked
MAX_ANSWER_VALUES = 200_000  # of an answer's JSON; a page of results has some hundreds
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Co", "Cs")  # control and formatting characters
_now = time.monotonic


class _TransientError(Exception):
    """An attempt failed, but another one may succeed.

    `retry_after_s` is the engine's Retry-After in seconds, and `limited` says whether it limits the rate.
    """

    def __init__(self, problem: str, retry_after_s: float | None = None, limited: bool = False):
        super().__init__(problem)
        self.retry_after_s, self.limited = retry_after_s, limited


class WebClient:
    """Searches with one engine. It belongs to the event loop in which it is first used."""

    def __init__(self, engine: WebEngine, url: str, key: str | None, options: WebOptions):
        self.engine = engine
        self.options = options
        self.breaker = CircuitBreaker()
        self._url = url
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        self._problem = ""  # the latest failure

    def __repr__(self) -> str:
        return f"WebClient({self.engine.name})"  # without the address and the key

    async def search(self, query: str, depth: int) -> list[WebDocument]:
        """Return up to `depth` results, best first. Raises SearchFailedError with a reason for the client."""
        for attempt in range(self.options.retries + 1):
            await self._wait_for_breaker()
            try:
                documents = await self._attempt(query, depth)
                self.breaker.answered()
                return documents
            except _TransientError as error:
                failure = error
                self._report(error)
            except SearchFailedError:
                self.breaker.answered()
                raise
            except BaseException:
                self.breaker.abandoned()
                raise
            if self.breaker.is_down:
                break
            if attempt < self.options.retries:
                await asyncio.sleep(retry.backoff_seconds(self.options.backoff_s, attempt))
        word = "web_limited" if failure.limited else "web_unavailable"
        raise self._failure(503, word, str(failure), retry.whole_seconds(failure.retry_after_s))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _wait_for_breaker(self) -> None:
        """Return when a request may be sent. Raises SearchFailedError if the pause is too long."""
        while (hold := self.breaker.hold(_now())) is not None:
            seconds = retry.whole_seconds(hold.seconds)
            if hold.down:
                reason = f"not asked: its last requests all failed, the latest with: {self._problem}"
                raise self._failure(503, "web_unavailable", reason, seconds)
            if hold.seconds > self.options.timeout_s:
                raise self._failure(503, "web_limited", f"it asked for a pause of {seconds} s", seconds)
            # The jitter keeps all waiting requests from being sent at the same moment.
            await asyncio.sleep(hold.seconds + random.uniform(0, self.options.backoff_s))

    def _report(self, error: _TransientError) -> None:
        """Report a failed attempt to the breaker, after which the engine may count as down."""
        self._problem = str(error)
        if error.retry_after_s is not None:
            self.breaker.limited(_now(), error.retry_after_s)
        elif error.limited:
            self.breaker.answered()
        elif self.breaker.failed(_now()):
            log.warning("%s counts as down: %s", self.engine.name, self._scrub(self._problem))

    async def _attempt(self, query: str, depth: int) -> list[WebDocument]:
        """Return the results of one request. Raises _TransientError, or SearchFailedError for a refusal."""
        fields = self.engine.fields(query, depth, self.options.params)
        payload: dict = {"json": fields} if self.engine.method == "POST" else {"params": fields}
        try:
            # Redirects are not followed, since they would send the key to another host.
            async with self._open().request(
                self.engine.method, self._url, allow_redirects=False, **payload
            ) as response:
                body = await _read_body(response)
                status, headers = response.status, response.headers
        except asyncio.TimeoutError:
            raise _TransientError(f"no answer within {self.options.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The text of the error is left out: it may contain the address, which may be private.
            raise _TransientError(f"no answer ({_error_kind(error)})") from None
        self._check_status(status, headers, body)
        try:
            return self.engine.parse(read_json(body, MAX_ANSWER_VALUES))[:depth]
        except ValueError as error:
            text = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
            raise self._failure(502, "web_bad_answer", f"its answer is not a search result: {text}") from None

    def _check_status(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Raise _TransientError, or SearchFailedError for a refusal, unless the status is 200."""
        if status == 429 or status >= 500:
            limited = status == 429
            raise _TransientError(f"HTTP {status}{_detail(body)}", retry.retry_after(headers), limited)
        if status in self.engine.refusals or status in (401, 403):
            reason = f"HTTP {status}{_detail(body)}; {self._remedy()}"
            raise self._failure(502, "web_refused", reason)
        if status >= 400:
            raise self._failure(422, "web_bad_query", f"HTTP {status}{_detail(body)}")
        if status != 200:
            raise self._failure(502, "web_bad_answer", f"HTTP {status} instead of 200; is its address right?")

    def _open(self) -> aiohttp.ClientSession:
        """Return the session, which is created at the first request because it belongs to the event loop."""
        if self._session is None:
            headers = {
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
                "User-Agent": "rag-r1-retrieval-server",
            }
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self.options.concurrency, ttl_dns_cache=300),
                timeout=aiohttp.ClientTimeout(total=self.options.timeout_s),
                headers=headers | (self.engine.headers(self._key) if self._key else {}),
                auto_decompress=False,  # `_read_body` unpacks with a limit
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,  # for HTTPS_PROXY and NO_PROXY, which clusters need
            )
        return self._session

    def _remedy(self) -> str:
        """Return the remedy for an engine that refuses this server."""
        if self.engine.key_variable is None:
            return "the instance must allow format=json (search.formats in its settings.yml) and this client"
        return f"look at {self.engine.key_variable} and the account's quota"

    def _failure(
        self, status: int, word: str, reason: str, retry_after: int | None = None
    ) -> SearchFailedError:
        """Return the error for the client, which names the engine but does not contain the key."""
        return SearchFailedError(status, word, f"{self.engine.name}: {self._scrub(reason)}", retry_after)

    def _scrub(self, text: str) -> str:
        """Return the text without the key, which an engine may have repeated."""
        return text.replace(self._key, "[key]") if self._key else text


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the unpacked body of a response. Raises ValueError if it is longer than MAX_ANSWER_BYTES."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError("too long")
    return _unpack(bytes(body), response.headers.get("Content-Encoding", ""))


def _unpack(body: bytes, encoding: str) -> bytes:
    """Return the unpacked body. Raises ValueError if it has another compression or is too long."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise ValueError("compressed in a way that was not asked for")
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacking.decompress(body, MAX_ANSWER_BYTES + 1)
    except zlib.error as error:
        raise ValueError("broken compression") from error
    if len(unpacked) > MAX_ANSWER_BYTES or not unpacking.eof:
        raise ValueError("too long, or cut off")
    return unpacked


def _error_kind(error: BaseException) -> str:
    """Return the class of an error, and the system's reason if a connection failed, but no address."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{type(error).__name__}: {error.os_error.strerror or type(error.os_error).__name__}"
    return type(error).__name__


def _detail(body: bytes) -> str:
    """Return the engine's reason for a refusal in brackets, shortened: the first message in its JSON."""
    try:
        value = read_json(body, MAX_ANSWER_VALUES)
    except ValueError:
        return ""
    for name in ("error", "errors", "detail", "message"):
        while isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return f" ({_printable(value)})" if isinstance(value, str) and value.strip() else ""


def _printable(text: str) -> str:
    """Return a server's text on one line, shortened and without control and formatting characters."""
    line = " ".join(text[:800].split())[:200]
    return "".join("\ufffd" if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in line)
