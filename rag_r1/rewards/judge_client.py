"""The client of a judge: a language model behind an OpenAI-compatible chat endpoint.

The terms in rag_r1/rewards/terms/judged.py use it. The system message of a request has the instructions, and
its user message is a JSON object with the texts to be judged. These come from the policy and from documents,
so they are data: the instructions tell the judge to follow nothing in them.

The reply must be exactly one of the allowed words; white space around it, a full stop and letter case do not
matter. Anything else (another reply, a refusal, an HTTP error, a broken connection) raises
`CannotJudgeError`, and the term is left out of the sample. The reason in the error contains neither texts nor
keys. Before that, time-outs, broken answers and transient HTTP statuses (rag_r1/io/retry.py) are retried with
exponential back-off and jitter.

Each distinct request is sent once: replies are cached (rag_r1/runs/response_cache.py), and equal requests in
flight are shared. A request is cancelled if all its callers are. Failures are not cached.

There is one client, with one pool of connections, for each event loop and set of options. An async generator
holds it, because asyncio closes generators together with the loop. `max_requests` limits how many requests a
process sends with the same options, including retries.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.inference.connection import ServerConnections
from rag_r1.inference.judging import read_verdict, request_body
from rag_r1.inference.response_limits import ResponseLimits
from rag_r1.inference.response_metadata import first_choice, message_text
from rag_r1.io.bounded_json import read_json
from rag_r1.io.retry import RetryPolicy, TransientError, is_transient, retry_after, with_retries
from rag_r1.rewards.judge_options import JudgeOptions, key_header
from rag_r1.rewards.registry import CannotJudgeError, RewardError
from rag_r1.runs.response_cache import ResponseCache, Usage

#: Most bytes of an answer (1 MiB), and most JSON values in it; beyond these the request has failed.
_LIMITS = ResponseLimits(bytes=1 << 20)
_MAX_ANSWER_VALUES = 50_000
#: Most seconds between two attempts.
_MAX_WAIT_S = 30.0
_ClientKey = tuple[asyncio.AbstractEventLoop, JudgeOptions]
#: Name of the cache file if the option `cache` is a folder.
_CACHE_FILE = "judge.jsonl"


async def ask_judge(
    options: JudgeOptions, instructions: str, case: Mapping[str, Any], allowed: Collection[str]
) -> str:
    """Return the judge's reply about a case: one of the `allowed` words, in lower case. Raises
    CannotJudgeError if there is no such reply, and RewardError if the key is missing or the cache cannot be
    opened."""
    key = asyncio.get_running_loop(), options
    if key not in _clients:
        # The generator awaits nothing before its yield, so no other task can create the client meanwhile.
        holder = _open_client(options)
        _clients[key] = await anext(holder), holder
    return await _clients[key][0].ask(instructions, case, allowed)


@dataclass
class _PendingRequest:
    """A request in flight."""

    task: asyncio.Task[str]
    #: Number of callers that wait for the reply.
    waiting: int = 0


class JudgeClient:
    """Sends each distinct request to the judge once, and reads its reply. Belongs to one event loop."""

    def __init__(self, options: JudgeOptions, replies: ResponseCache, server: ServerConnections):
        self.options = options
        self._replies = replies
        self._server = server
        self._retry = RetryPolicy(options.retries, options.backoff_s, _MAX_WAIT_S)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._pending: dict[bytes, _PendingRequest] = {}

    async def ask(self, instructions: str, case: Mapping[str, Any], allowed: Collection[str]) -> str:
        """Return the judge's reply about a case, from the cache if possible. Raises CannotJudgeError if there
        is no such reply."""
        fields = request_body(self.options.model, instructions, case, self.options.max_tokens)
        body = json.dumps(fields, sort_keys=True).encode()
        entry = self._replies.get("", 0, body)
        word = None if entry is None else entry["answer"].get("text")
        if isinstance(word, str) and word in allowed:
            return word
        request = self._pending.get(body)
        if request is None:
            # The request is a task of its own: if one trajectory is out of time, the others still get the
            # reply.
            task = asyncio.create_task(self._reply(body, allowed))
            request = self._pending[body] = _PendingRequest(task)
        request.waiting += 1
        try:
            return await asyncio.shield(request.task)
        finally:
            request.waiting -= 1
            if not request.waiting:
                request.task.cancel()
                del self._pending[body]

    async def _reply(self, body: bytes, allowed: Collection[str]) -> str:
        """Send a request, with retries, and put the reply into the cache. Returns the reply. Raises
        CannotJudgeError if there is none, or if it is not one of the `allowed` words."""
        try:
            reply = await with_retries(self._retry, partial(self._post, body))
        except TransientError as error:
            raise CannotJudgeError(f"the judge failed: {error}") from None
        if (word := read_verdict(reply, allowed)) is None:
            raise CannotJudgeError(f"the judge's reply is none of: {', '.join(allowed)}")
        self._replies.put("", 0, body, {"text": word}, Usage(requests=1))
        return word

    async def _post(self, body: bytes) -> str:
        """Send a request once; returns the text of the judge's message. Raises TransientError for a failure
        that may pass, else CannotJudgeError."""
        async with self._slots:
            _count_request(self.options)
            response = await self._server.post("", body, _LIMITS)
        status = response.status
        if status == 200:
            return _reply_text(response.body)
        if is_transient(status):
            raise TransientError(f"HTTP {status}", retry_after(response.headers))
        hint = "; check the key that api_key_env names" if status in (401, 403) else ""
        raise CannotJudgeError(f"the judge's endpoint refused the request: HTTP {status}{hint}")


#: The clients. The generator of each is kept here, since it would be closed as soon as nothing refers to it.
_clients: dict[_ClientKey, tuple[JudgeClient, AsyncGenerator[JudgeClient, None]]] = {}
#: Number of requests that this process has sent with each set of options.
_sent_requests: Counter[JudgeOptions] = Counter()
_sent_lock = threading.Lock()  # event loops may run in several threads


def _count_request(options: JudgeOptions) -> None:
    """Count a request before it is sent. Raises CannotJudgeError if `max_requests` have been sent."""
    with _sent_lock:
        if _sent_requests[options] >= options.max_requests:
            raise CannotJudgeError(
                f"max_requests ({options.max_requests:,}) have been sent to the judge: raise max_requests"
            )
        _sent_requests[options] += 1


async def _open_client(options: JudgeOptions) -> AsyncGenerator[JudgeClient, None]:
    """Yield a client, and close it with the event loop, whose shutdown ends all async generators. Raises
    RewardError if the key is missing or the cache cannot be opened."""
    key = asyncio.get_running_loop(), options
    header = key_header(options.api_key_env)
    # Error messages must not quote the server, which may repeat a request.
    server = ServerConnections(options.endpoint, header, options.timeout_s, quotes_errors=False)
    replies = _open_cache(options.cache)
    try:
        yield JudgeClient(options, replies, server)
    finally:
        _clients.pop(key, None)
        replies.close()
        await server.close()


def _open_cache(path: str | None) -> ResponseCache:
    """Open the cache of replies in a file or a folder, or in memory if `path` is None. Raises RewardError if
    it cannot be opened."""
    if path is None:
        return ResponseCache.shared(None)
    location = Path(path)
    file = location if location.suffix == ".jsonl" and not location.is_dir() else location / _CACHE_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return ResponseCache.shared(file)
    except OSError as error:
        raise RewardError(
            f"the judge's cache {file} cannot be opened ({error.strerror}): set `cache` to a file or folder "
            "that can be written to, or to null"
        ) from error


def _reply_text(raw: bytes) -> str:
    """Return the text in an answer of the chat API. Raises TransientError if it cannot be read, and
    CannotJudgeError if the judge declined."""
    try:
        choice = first_choice(read_json(raw, _MAX_ANSWER_VALUES))
        refusal = choice["message"].get("refusal")
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise TransientError("an answer that is not a chat completion") from None
    if refusal or choice.get("finish_reason") == "content_filter":
        raise CannotJudgeError("the judge declined")
    return message_text(choice) or ""
