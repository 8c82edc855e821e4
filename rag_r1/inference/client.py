"""A client for an OpenAI-compatible endpoint, with retries, a rate limit and a cost limit.

A request is sent once the rate limiter admits it (rate_limit.py) and a slot is free. Three kinds of failure
are handled differently:

- Transient errors are retried with exponential back-off and jitter: refused and broken connections,
  time-outs, HTTP statuses 5xx except 501, and 429 (whose Retry-After delays all requests), and malformed
  answers.
- After the last attempt, or if the endpoint rejects this particular request, `EngineFailure` is raised. The
  agent core then ends the episode with an engine failure.
- Errors that affect every request end the run, which can be resumed: a wrong key or address, an account
  without credit, or a long Retry-After.

    async def attempt() -> str:
        async with endpoint.post("/chat/completions", body, max_tokens=16) as response:
            return read_chat(response.data).text  # raises ValueError for a malformed answer

    text = await endpoint.retried(attempt)

The key is read from an environment variable, is sent to this address only (connection.py), and is removed
from every message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rag_r1.inference.character_codec import estimate_tokens
from rag_r1.inference.connection import HttpResponse, ServerConnections
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.inference.response_limits import MAX_ANSWER_VALUES, ResponseLimits
from rag_r1.inference.response_metadata import error_message, usage_of
from rag_r1.inference.streaming import OnText
from rag_r1.io.bounded_http import is_web_page
from rag_r1.io.bounded_json import read_json
from rag_r1.io.errors import TooLargeError
from rag_r1.io.retry import RetryPolicy, TransientError, is_transient, retry_after, with_retries
from rag_r1.io.secrets import read_secret
from rag_r1.options.server_address import model_server_base
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import Usage

Result = TypeVar("Result")

#: Statuses that concern the account rather than one request: a wrong key, or no credit.
_ACCOUNT_STATUSES = {401, 402}
#: Statuses that concern the address if the endpoint has never answered. After a first answer they concern the
#: request alone (moderation, for example).
_ADDRESS_STATUSES = {403, 404, 405, 501}


class EngineFailure(Exception):
    """A request received no usable answer."""


class RequestRejectedError(EngineFailure):
    """The endpoint rejected a request because of its content, such as a prompt longer than the model's
    context."""


@dataclass(frozen=True)
class Response:
    """The JSON of an answer, and its token usage."""

    data: Any
    usage: Usage


@dataclass(frozen=True)
class EndpointOptions:
    """The address of an endpoint and the way requests are sent to it. Times are in seconds."""

    url: str
    #: The environment variable that holds the API key.
    key_variable: str = "OPENAI_API_KEY"
    #: Time limit of one attempt.
    timeout_s: float = 300.0
    #: Number of attempts after the first.
    retries: int = 6
    #: Wait before the first retry; it doubles with each further one, and is jittered.
    backoff_s: float = 1.0
    #: Longest wait between attempts. If the endpoint asks for a longer one, the run ends.
    longest_wait_s: float = 300.0
    #: Maximum number of concurrent requests.
    in_flight: int = 64
    #: Whether proxy settings of the environment, such as HTTPS_PROXY, are used.
    trust_env: bool = False


class Endpoint:
    """Sends requests to one endpoint, within its limits and with retries. It belongs to one event loop, and
    calls `stop` to end the run. `base` is its address without `/chat/completions`; `spending` and
    `rate_limiter`, if they are not given, have no limits."""

    def __init__(
        self,
        options: EndpointOptions,
        stop: CancelToken,
        spending: CostTracker | None = None,
        rate_limiter: RateLimiter | None = None,
    ):
        self.options, self.stop = options, stop
        self.base = base_address(options.url)
        self.spending = spending or CostTracker(stop)
        self.rate_limiter = rate_limiter or RateLimiter()
        self._key = key_of(options.key_variable)
        self._retry = RetryPolicy(options.retries, options.backoff_s, options.longest_wait_s)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._server = ServerConnections(self.base, headers, options.timeout_s, trust_env=options.trust_env)
        self._slots = asyncio.Semaphore(options.in_flight)
        self._n_pending = 0
        self._n_answers = 0

    async def retried(self, attempt: Callable[[], Awaitable[Result]], probe_s: float | None = None) -> Result:
        """Return the result of `attempt`, which is repeated after transient errors.

        An attempt is one `post` and the reading of its answer within the block. `probe_s` is for the first
        request of a run: it is retried at most once, and everything must be done within that many seconds.
        Raises EngineFailure after the last attempt.
        """
        try:
            if probe_s is None:
                return await with_retries(self._retry, attempt)
            policy = replace(self._retry, retries=min(self._retry.retries, 1))
            return await asyncio.wait_for(with_retries(policy, attempt), probe_s)
        except TimeoutError:
            raise EngineFailure(f"{self.base}: no answer within {probe_s:g} s") from None
        except TransientError as error:
            raise EngineFailure(self._scrub(f"{self.base}: {error}")) from None

    @asynccontextmanager
    async def post(
        self, path: str, body: Mapping[str, Any], max_tokens: int = 0, on_text: OnText | None = None
    ) -> AsyncIterator[Response]:
        """Send a request once, and yield its answer.

        A ValueError raised within the block means that the answer is malformed and becomes a TransientError;
        otherwise the answer counts as good. `max_tokens` is the number of tokens that may be generated. With
        `on_text` the answer is streamed, and each piece of text is passed on (streaming.py). Raises
        TransientError for a failure that may pass, and RequestRejectedError. Never returns if the run ends.
        """
        if on_text is not None:
            body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        prompt_tokens = _prompt_tokens(body)
        estimated_tokens = prompt_tokens + max_tokens
        await self.stop.block_if_cancelled()
        async with self.spending.reserved(prompt_tokens, max_tokens):
            await self.rate_limiter.wait_turn(estimated_tokens)
            raw = await self._send(path, body, ResponseLimits.of(body, prompt_tokens), on_text)
            response = _parsed(raw, prompt_tokens)
            usage = response.usage
            try:
                yield response
            except ValueError as error:
                if not usage.estimated:  # the endpoint also charges for a malformed answer
                    self.spending.usage.add(usage)
                raise TransientError(f"a useless answer: {error}") from error
            self._n_answers += 1
            self.spending.usage.add(usage)
            self.rate_limiter.correct(estimated_tokens, usage.prompt_tokens + usage.completion_tokens)

    async def idle(self) -> None:
        """Wait until no request is under way."""
        while self._n_pending:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _send(
        self, path: str, body: Mapping[str, Any], limits: ResponseLimits, on_text: OnText | None
    ) -> bytes:
        """Send a request in a free slot and return the body of the answer if its status is 200. Otherwise
        raises TransientError or RequestRejectedError, or ends the run."""
        content = request_bytes(body)
        async with self._slots:
            await self.stop.block_if_cancelled()
            self._n_pending += 1
            try:
                response = await self._server.post(path, content, limits, on_text)
            finally:
                self._n_pending -= 1
        if response.status != 200:
            await self._raise_refusal(response)
        if not self._n_answers and is_web_page(response.headers):
            await self._end_run("answers with a web page: give the address of the API, as in HOST/v1")
        return response.body

    async def _raise_refusal(self, response: HttpResponse) -> None:
        """Raise the error for a status other than 200, or end the run."""
        status = response.status
        message = self._scrub(f"HTTP {status}{error_message(response.body)}")
        fatal_statuses = _ACCOUNT_STATUSES if self._n_answers else _ACCOUNT_STATUSES | _ADDRESS_STATUSES
        if status in fatal_statuses or b'"insufficient_quota"' in response.body:
            remedy = f"check the key in ${self.options.key_variable}, the address, the model and the account"
            await self._end_run(f"refuses requests: {message}; {remedy}")
        if 300 <= status < 400:
            await self._end_run(f"redirects ({message}), which is not followed: give the address itself")
        if is_transient(status):
            wait_s = retry_after(response.headers)
            if wait_s > self.options.longest_wait_s:
                await self._end_run(f"wants to be asked again in {wait_s:.0f} s ({message})")
            if wait_s:
                self.rate_limiter.pause(wait_s)
            raise TransientError(message, wait_s)
        raise RequestRejectedError(f"refused: {message}")

    async def _end_run(self, fault: str) -> None:
        """End the run, because the endpoint has a fault that concerns every request. Never returns."""
        self.stop(f"{self.base} {fault}")
        await self.stop.block_if_cancelled()

    def _scrub(self, text: str) -> str:
        """Return the text without the key."""
        return text.replace(self._key, "[key]") if self._key else text


def _parsed(raw: bytes, prompt_tokens: int) -> Response:
    """Return the JSON of an answer and its usage. Raises TransientError if it is not JSON, or too large."""
    try:
        data = read_json(raw, MAX_ANSWER_VALUES)
    except TooLargeError as error:
        raise TransientError(f"a useless answer: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TransientError("the answer is not JSON") from error
    return Response(data, usage_of(data, prompt_tokens, estimate_tokens(raw.decode("utf-8", "replace"))))


def request_bytes(body: Mapping[str, Any]) -> bytes:
    """Return the body of a request as it is sent. Equal requests have equal bytes, so that they can be found
    in the response cache."""
    return json.dumps(dict(body), ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")


def _prompt_tokens(body: Mapping[str, Any]) -> int:
    """Return the approximate number of tokens in a request's prompt; the number is exact for a prompt of
    token ids."""
    prompt = body.get("messages", body.get("prompt", ""))
    ids = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)
    return len(prompt) if ids else estimate_tokens(prompt)


def base_address(url: str) -> str:
    """Return the address without `/chat/completions`, and with `/v1` if it has no path. Raises RunError for
    a text that is not an address or may contain a key (rag_r1/options/server_address.py)."""
    try:
        return model_server_base(url)
    except ValueError as error:
        raise RunError(f"the endpoint's address {error}; --api-key-env names the key's variable") from error


def key_of(variable: str) -> str:
    """Return the key in an environment variable; "" if it is not set. Raises RunError for a value that
    cannot be a key."""
    try:
        return read_secret(variable) or ""
    except ValueError as error:
        raise RunError(str(error)) from None
