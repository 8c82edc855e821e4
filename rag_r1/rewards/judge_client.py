"""A client of a judge, a language model behind an OpenAI-compatible chat endpoint, for the terms in
rag_r1/rewards/terms/judged.py.

A request has instructions as its system message and a JSON object with the texts to be judged as its user
message. The texts come from the policy and from documents: they are data, and the instructions tell the judge
to follow nothing in them. The reply must be exactly one of the allowed words; white space around it, a full
stop and letter case do not matter. Whatever else happens raises `CannotJudgeError` with a short reason, in
which there is neither a text nor a key, so the term is left out of the sample: a reply in other words, a
refusal, an HTTP error, a broken connection. Time-outs, broken answers and HTTP statuses that may pass
(rag_r1/io/retry.py) are first repeated with exponential back-off and jitter.

Each distinct request is sent once: replies are cached (rag_r1/runs/response_cache.py), and requests that are
under way are shared. A request whose callers are all cancelled is cancelled too. Failures are not cached.

There is one client, with one pool of connections, for each event loop and set of options. It is held by an
async generator, which asyncio closes with the loop. `max_requests` limits the requests that a process sends
with the same options, repetitions included.
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

from rag_r1.inference.connection import ModelServer
from rag_r1.inference.judging import read_verdict, request_body
from rag_r1.inference.response_limits import ResponseLimits
from rag_r1.inference.response_metadata import first_choice, message_text
from rag_r1.io.bounded_json import read_json
from rag_r1.io.retry import RetryPolicy, TransientError, is_transient, retry_after, with_retries
from rag_r1.rewards.judge_options import JudgeOptions, key_header
from rag_r1.rewards.registry import CannotJudgeError, RewardError
from rag_r1.runs.response_cache import ResponseCache, Usage

#: Most bytes of an answer, and most JSON values in it; a larger one counts as a failed request.
MAX_ANSWER_BYTES = 1 << 20
_MAX_ANSWER_VALUES = 50_000
_LIMITS = ResponseLimits(bytes=MAX_ANSWER_BYTES)
#: Most seconds between two attempts.
_MAX_WAIT_S = 30.0
_ClientKey = tuple[asyncio.AbstractEventLoop, JudgeOptions]
#: Name of the cache's file, if the option `cache` is a folder.
_CACHE_FILE = "judge.jsonl"


async def ask_judge(
    options: JudgeOptions, instructions: str, case: Mapping[str, Any], allowed: Collection[str]
) -> str:
    """Returns the judge's reply about a case, one of the `allowed` words (in lower case). Raises
    CannotJudgeError if there is none, and RewardError if the key is missing or the cache cannot be opened."""
    key = asyncio.get_running_loop(), options
    if key not in _clients:
        # The generator awaits nothing before its yield, so no other task can make the client meanwhile.
        holder = _open_client(options)
        _clients[key] = await anext(holder), holder
    return await _clients[key][0].ask(instructions, case, allowed)


@dataclass
class _PendingRequest:
    """A request that is being sent, and the number of callers that wait for its reply."""

    task: asyncio.Task[str]
    waiting: int = 0


class JudgeClient:
    """Sends requests to a judge, each distinct one once, and reads its replies. Belongs to one event loop."""

    def __init__(self, options: JudgeOptions, replies: ResponseCache, server: ModelServer):
        self.options = options
        self._replies = replies
        self._server = server
        self._retry = RetryPolicy(options.retries, options.backoff_s, _MAX_WAIT_S)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._pending: dict[bytes, _PendingRequest] = {}

    async def ask(self, instructions: str, case: Mapping[str, Any], allowed: Collection[str]) -> str:
        """Returns the judge's reply about a case, from the cache if it is there. Raises CannotJudgeError."""
        fields = request_body(self.options.model, instructions, case, self.options.max_tokens)
        body = json.dumps(fields, sort_keys=True).encode()
        entry = self._replies.get("", 0, body)
        word = None if entry is None else entry["answer"].get("text")
        if isinstance(word, str) and word in allowed:
            return word
        request = self._pending.get(body)
        if request is None:
            # A task of its own: if one trajectory is out of time, the others still get their reply.
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
        """Sends a request until it is answered, and keeps the reply in the cache. Raises CannotJudgeError."""
        try:
            reply = await with_retries(self._retry, partial(self._post, body))
        except TransientError as error:
            raise CannotJudgeError(f"the judge failed: {error}") from None
        if (word := read_verdict(reply, allowed)) is None:
            raise CannotJudgeError(f"the judge's reply is none of: {', '.join(allowed)}")
        self._replies.put("", 0, body, {"text": word}, Usage(requests=1))
        return word

    async def _post(self, body: bytes) -> str:
        """Sends a request once and returns the text of the judge's message. Raises TransientError for a
        failure that may pass, else CannotJudgeError."""
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


#: The clients, each with the generator that holds it and would be closed at once if nothing kept it.
_clients: dict[_ClientKey, tuple[JudgeClient, AsyncGenerator[JudgeClient, None]]] = {}
_sent_requests: Counter[JudgeOptions] = Counter()
_sent_lock = threading.Lock()  # event loops may run in several threads


def _count_request(options: JudgeOptions) -> None:
    """Count a request that is about to be sent. Raises CannotJudgeError if `max_requests` were sent."""
    with _sent_lock:
        if _sent_requests[options] >= options.max_requests:
            raise CannotJudgeError(
                f"max_requests ({options.max_requests:,}) have been sent to the judge: raise max_requests"
            )
        _sent_requests[options] += 1


async def _open_client(options: JudgeOptions) -> AsyncGenerator[JudgeClient, None]:
    """Yields the client and closes it with the event loop, whose shutdown ends all async generators."""
    key = asyncio.get_running_loop(), options
    header = key_header(options.api_key_env)
    # Without quotes: the texts of errors may show a request.
    server = ModelServer(options.endpoint, header, options.timeout_s, quotes_errors=False)
    replies = _open_cache(options.cache)
    try:
        yield JudgeClient(options, replies, server)
    finally:
        _clients.pop(key, None)
        replies.close()
        await server.close()


def _open_cache(path: str | None) -> ResponseCache:
    """The cache of replies in a file or a folder; None: in memory. Raises RewardError if it cannot be
    opened."""
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
    """The text in an answer of the chat API. Raises TransientError for an answer that cannot be read, and
    CannotJudgeError if the judge declined."""
    try:
        choice = first_choice(read_json(raw, _MAX_ANSWER_VALUES))
        refusal = choice["message"].get("refusal")
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise TransientError("an answer that is not a chat completion") from None
    if refusal or choice.get("finish_reason") == "content_filter":
        raise CannotJudgeError("the judge declined")
    return message_text(choice) or ""
