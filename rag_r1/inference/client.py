"""A client of an OpenAI-compatible endpoint, with retries, a rate limit and a cost limit.

A request is sent when its turn has come (rate_limit.py) and a slot is free. What may pass is repeated with
exponential back-off and jitter: refused and broken connections, time-outs, 5xx, 429 (whose Retry-After holds
back all requests), and answers that are not what was asked for. After the last attempt, or if the endpoint
refuses this request, `EngineFailure` is raised, and the agent core ends the episode with a failure of the
engine. What concerns all requests (the key, the address, an empty account, a long Retry-After) ends the run,
which can be resumed.

The key is read from an environment variable, is sent to this address only (redirects are errors) and is cut
out of every message. Answers are data: they are limited in size and checked by the function that reads them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from rag_r1.inference.character_codec import estimate_tokens
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.rate_limit import CancelToken, RateLimiter
from rag_r1.inference.response_limits import MAX_ANSWER_VALUES, ResponseLimits
from rag_r1.inference.response_metadata import error_message, usage_of
from rag_r1.inference.retry import retry_after, retry_delay
from rag_r1.inference.streaming import OnText, assemble_body
from rag_r1.io.bounded_json import JsonLimitError, read_json
from rag_r1.options.server_address import server_address
from rag_r1.runs.json_lines import RunError
from rag_r1.runs.response_cache import Usage

Answer = TypeVar("Answer")

_AGAIN = {408, 409, 425, 429}
#: For the account, not for a request: a wrong key, no money.
_ACCOUNT = {401, 402}
#: The same, unless the endpoint has answered before: then it is about this request (moderation, for example).
_ADDRESS = {403, 404, 405}


class EngineFailure(Exception):
    """A request that got no usable answer."""


class RequestRejectedError(EngineFailure):
    """A request that the endpoint refuses for what it says, such as one longer than the model's context."""


class _TransientError(Exception):
    """What may pass. `wait_s`: what the endpoint has asked for; `usage`: of a useless answer."""

    def __init__(self, what: str, wait_s: float = 0.0, usage: Usage | None = None):
        super().__init__(what)
        self.wait_s, self.usage = wait_s, usage


@dataclass(frozen=True)
class EndpointOptions:
    """Where an endpoint is and how it is asked. Times are in seconds."""

    url: str
    #: The environment variable with its key.
    key_variable: str = "OPENAI_API_KEY"
    #: For one attempt.
    timeout_s: float = 300.0
    #: Attempts after the first.
    retries: int = 6
    #: Before the first of them; doubles each time, with jitter.
    backoff_s: float = 1.0
    #: Longest wait between attempts. If the endpoint asks for a longer one, the run ends.
    longest_wait_s: float = 300.0
    #: Most requests at a time.
    in_flight: int = 64
    #: Whether HTTPS_PROXY and the like are used.
    trust_env: bool = False


class Endpoint:
    """See the top of the module; belongs to one event loop. `stop` ends the run."""

    def __init__(
        self,
        options: EndpointOptions,
        stop: CancelToken,
        spending: CostTracker | None = None,
        pace: RateLimiter | None = None,
    ):
        self.options, self.stop = options, stop
        self.base = base_address(options.url)
        self.spending, self.pace = spending or CostTracker(stop), pace or RateLimiter()
        self._key = _key(options.key_variable)
        self._slots = asyncio.Semaphore(options.in_flight)
        self._under_way = 0
        self._answered = 0
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Answer],
        useless: Callable[[Usage], None] = lambda usage: None,
        most_tokens: int = 0,
        on_text: OnText | None = None,
    ) -> tuple[Answer, Usage]:
        """What `read` makes of the endpoint's answer, and the tokens. `read` raises ValueError for an answer
        that is not what was asked for; if its tokens have to be paid for, they are passed to `useless`.
        `most_tokens`: what may be generated; `on_text`: sees a streamed answer grow (streaming.py). Raises
        EngineFailure after the last attempt."""
        content = request_bytes(body)
        prompt_tokens = _prompt_tokens(body)
        limits = ResponseLimits.of(body, prompt_tokens)
        problem = "no attempt"
        for attempt in range(self.options.retries + 1):
            await self.stop.passed()
            try:
                async with self.spending.reserved(prompt_tokens, most_tokens):
                    return await self._attempt(
                        path, content, read, prompt_tokens, most_tokens, limits, on_text
                    )
            except _TransientError as again:
                problem = self._scrub(str(again))
                if again.usage is not None:
                    useless(again.usage)
                if attempt < self.options.retries:
                    await self._wait(attempt, again)
        raise EngineFailure(f"{problem} (attempt {self.options.retries + 1}, the last)")

    async def idle(self) -> None:
        """Wait until no request is under way."""
        while self._under_way:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(
        self,
        path: str,
        content: bytes,
        read: Callable[[Any], Answer],
        prompt_tokens: int,
        most_tokens: int,
        limits: ResponseLimits,
        on_text: OnText | None,
    ) -> tuple[Answer, Usage]:
        estimated = prompt_tokens + most_tokens
        await self.pace.turn(estimated)
        async with self._slots:
            await self.stop.passed()
            self._under_way += 1
            try:
                status, headers, raw = await asyncio.wait_for(
                    self._send(path, content, limits, on_text), self.options.timeout_s
                )
            # The first, because from Python 3.11 on a TimeoutError is an OSError.
            except (asyncio.TimeoutError, TimeoutError) as error:
                raise _TransientError(f"no answer within {self.options.timeout_s:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise _TransientError(f"no answer: {type(error).__name__}: {error}") from error
            finally:
                self._under_way -= 1
        if status != 200:
            await self._refused(status, headers, raw)
        try:
            data = read_json(raw, MAX_ANSWER_VALUES)
        except JsonLimitError as error:
            raise _TransientError(f"a useless answer: {error}") from error
        except (ValueError, RecursionError) as error:
            raise _TransientError("the answer is not JSON") from error
        usage = usage_of(data, prompt_tokens, estimate_tokens(raw.decode("utf-8", "replace")))
        try:
            answer = read(data)
        except ValueError as error:
            if usage.estimated:
                raise _TransientError(f"a useless answer: {error}") from error
            self.spending.add(usage)
            raise _TransientError(f"a useless answer: {error}", usage=usage) from error
        self._answered += 1
        self.spending.add(usage)
        self.pace.correct(estimated, usage.prompt_tokens + usage.completion_tokens)
        return answer, usage

    async def _send(
        self, path: str, content: bytes, limits: ResponseLimits, on_text: OnText | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. With aiohttp, since the pool of httpx looks through all its connections
        for each request: with 250 in flight that took longer than vLLM's work for them."""
        if self._session is None:
            key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._session = aiohttp.ClientSession(
                # No compression: a few bytes could expand to gigabytes.
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **key},
                auto_decompress=False,
                # `_slots` limits the requests. uvicorn closes a connection that was idle for 5 s.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                timeout=aiohttp.ClientTimeout(total=None),  # `_attempt` has one
                trust_env=self.options.trust_env,
            )
        # A redirect would carry texts and key to an address that nobody has given.
        async with self._session.post(self.base + path, data=content, allow_redirects=False) as response:
            try:
                whole = await assemble_body(response, limits, on_text)
            except (ValueError, RecursionError) as error:
                response.close()
                raise _TransientError(f"a useless answer: {error}") from error
            return response.status, response.headers, whole

    async def _refused(self, status: int, headers: Mapping[str, str], raw: bytes) -> None:
        """Raise what a status other than 200 means, or end the run."""
        said = self._scrub(f"HTTP {status}{error_message(raw)}")
        first = not self._answered
        if status in _ACCOUNT or (first and status in _ADDRESS) or b'"insufficient_quota"' in raw:
            remedy = f"check the key in ${self.options.key_variable}, the address, the model and the account"
            self.stop(f"{self.base} refuses requests: {said}; {remedy}")
            await self.stop.passed()
        if 300 <= status < 400:
            self.stop(f"{self.base} redirects ({said}), which is not followed: give the address itself")
            await self.stop.passed()
        if status in _AGAIN or status >= 500:
            wait_s = retry_after(headers.get("Retry-After", ""))
            if wait_s > self.options.longest_wait_s:
                self.stop(f"{self.base} wants to be asked again in {wait_s:.0f} s ({said})")
                await self.stop.passed()
            if wait_s:
                self.pace.pause(wait_s)
            raise _TransientError(said, wait_s)
        raise RequestRejectedError(f"refused: {said}")

    async def _wait(self, attempt: int, again: _TransientError) -> None:
        options = self.options
        await asyncio.sleep(retry_delay(attempt, options.backoff_s, again.wait_s, options.longest_wait_s))

    def _scrub(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def request_bytes(body: Mapping[str, Any]) -> bytes:
    """A request as it is sent. Equal requests are equal bytes."""
    return json.dumps(dict(body), ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")


def _prompt_tokens(body: Mapping[str, Any]) -> int:
    """About how many tokens a request's prompt has; exact if it is given as token ids."""
    prompt = body.get("messages", body.get("prompt", ""))
    ids = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)
    return len(prompt) if ids else estimate_tokens(prompt)


def base_address(url: str) -> str:
    """The address before `/chat/completions`; `/v1` if none is given. Raises RunError if it is no address, or
    may have a key in it (rag_r1/options/server_address.py)."""
    try:
        parts = urlsplit(server_address(url))
    except ValueError as error:
        raise RunError(f"the address of the endpoint {error}; the key's is named by --api-key-env") from None
    path = parts.path.rstrip("/")
    for end in ("/chat/completions", "/completions"):
        path = path.removesuffix(end)
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise RunError(f"${variable} has characters that a key cannot have: set it to the key alone")
    return key
