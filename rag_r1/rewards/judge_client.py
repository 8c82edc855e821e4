"""A client of a judge: a language model behind an OpenAI-compatible chat endpoint.
rag_r1/rewards/terms/judged.py has the terms.

A request has instructions as its system message and a JSON object with the texts to be judged as its user
message. The texts come from the policy and from documents: they are data, and the instructions tell the judge
to follow nothing in them. The reply must be exactly one of the allowed words; white space around it, a full
stop and letter case do not matter. Whatever else happens raises `CannotJudgeError` with a short reason, in
which there is neither a text nor a key, so the term is left out of the sample: a reply in other words, a
refusal, an HTTP error, a broken connection. Time-outs, broken answers, 5xx and 429 are first repeated with
exponential back-off and jitter.

Each distinct request is sent once: replies are cached (judge_cache.py), and who asks what is being asked
already waits for the same answer. A request for which nobody waits any longer is cancelled. Failures are not
cached.

There is one client, with one pool of connections, for each event loop and set of options. It is held by an
async generator, which asyncio closes with the loop. `max_requests` counts what a process has really sent with
the same options, repetitions included.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from rag_r1.io.bounded_json import read_json
from rag_r1.protocols.actions import well_formed
from rag_r1.rewards.judge_cache import ReplyCache
from rag_r1.rewards.judge_options import JudgeOptions, key_header
from rag_r1.rewards.registry import CannotJudgeError

#: A larger answer than this many bytes is none.
MAX_ANSWER_BYTES = 1 << 20
#: Nor is one of more JSON values.
_MAX_ANSWER_VALUES = 50_000
_AGAIN = {408, 425, 429}
_LONGEST_WAIT_S = 30.0


async def ask_judge(
    asked: JudgeOptions, instructions: str, case: Mapping[str, Any], allowed: Collection[str]
) -> str:
    """The judge's reply about a case, one of the `allowed` words (in lower case). Raises Refused without one,
    and RewardError if the key is missing or the cache cannot be opened."""
    place = asyncio.get_running_loop(), asked
    if place not in _clients:
        # Nothing is awaited before its yield, so no one else can be here meanwhile.
        holder = _held_client(asked)
        _clients[place] = await anext(holder), holder
    return await _clients[place][0].ask(instructions, case, allowed)


class _TransientError(Exception):
    """What may pass. `wait_s`: what the endpoint has asked for."""

    def __init__(self, what: str, wait_s: float = 0.0):
        super().__init__(what)
        self.wait_s = wait_s


@dataclass
class _PendingRequest:
    """A request that is being sent, and how many wait for its reply."""

    task: asyncio.Task[str]
    waiting: int = 0


class JudgeClient:
    """See the top of the module; belongs to one event loop."""

    def __init__(self, asked: JudgeOptions, replies: ReplyCache, session: aiohttp.ClientSession):
        self.options = asked
        self._replies = replies
        self._session = session
        self._slots = asyncio.Semaphore(asked.concurrency)
        self._under_way: dict[str, _PendingRequest] = {}

    async def ask(self, instructions: str, case: Mapping[str, Any], allowed: Collection[str]) -> str:
        """As `ask_judge`."""
        body = self._body(instructions, case)
        key = hashlib.sha256(body).hexdigest()
        known = self._replies.get(key)
        if known is not None and known in allowed:
            return known
        request = self._under_way.get(key)
        if request is None:
            # A task of its own: if a trajectory is out of time, the others still get their answer.
            task = asyncio.create_task(self._reply(key, body, allowed))
            request = self._under_way[key] = _PendingRequest(task)
        request.waiting += 1
        try:
            return await asyncio.shield(request.task)
        finally:
            request.waiting -= 1
            if not request.waiting:
                request.task.cancel()
                del self._under_way[key]

    def _body(self, instructions: str, case: Mapping[str, Any]) -> bytes:
        shown = well_formed(json.dumps(dict(case), ensure_ascii=False))
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": shown}]
        asked = self.options
        body = {"model": asked.model, "messages": messages, "temperature": 0, "max_tokens": asked.max_tokens}
        return json.dumps(body, sort_keys=True).encode()

    async def _reply(self, key: str, body: bytes, allowed: Collection[str]) -> str:
        said = await self._with_retries(body)
        word = said.strip().removesuffix(".").casefold()
        if word not in allowed:
            raise CannotJudgeError(f"the judge's reply is none of: {', '.join(allowed)}")
        self._replies.put(key, word)
        return word

    async def _with_retries(self, body: bytes) -> str:
        attempt = 0
        while True:
            try:
                async with self._slots:
                    _count(self.options)
                    return await self._post(body)
            except _TransientError as again:
                if attempt >= self.options.retries:
                    told = f"{again} (attempt {attempt + 1}, the last)"
                    raise CannotJudgeError(f"no answer of the judge: {told}") from None
                backoff = self.options.backoff_s * 2 ** min(attempt, 10) * random.uniform(0.5, 1.5)
                wait_s = min(max(again.wait_s, backoff), _LONGEST_WAIT_S)
            attempt += 1
            await asyncio.sleep(wait_s)

    async def _post(self, body: bytes) -> str:
        """The text of the judge's message. Errors are named by their type: their texts may show a request."""
        url = self.options.endpoint
        try:
            # A redirect would carry texts and key to an address that nobody has configured.
            async with self._session.post(url, data=body, allow_redirects=False) as response:
                raw = await _limited(response)
        except (asyncio.TimeoutError, TimeoutError):
            raise _TransientError(f"nothing within {self.options.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TransientError(type(error).__name__) from None
        if response.status == 200:
            return _content(raw)
        if response.status in _AGAIN or response.status >= 500:
            raise _TransientError(
                f"HTTP {response.status}", _retry_after(response.headers.get("Retry-After", ""))
            )
        hint = "; check the key that api_key_env names" if response.status in (401, 403) else ""
        raise CannotJudgeError(f"the judge's endpoint refused the request: HTTP {response.status}{hint}")


_clients: dict[
    tuple[asyncio.AbstractEventLoop, JudgeOptions], tuple[JudgeClient, AsyncGenerator[JudgeClient, None]]
] = {}
_sent: Counter[JudgeOptions] = Counter()
_sent_lock = threading.Lock()  # event loops may run in several threads


def _count(asked: JudgeOptions) -> None:
    """Count a request that is about to be sent. Raises Refused if there were enough."""
    with _sent_lock:
        if _sent[asked] >= asked.max_requests:
            raise CannotJudgeError(
                f"the judge is asked no more: max_requests ({asked.max_requests:,}) have been sent"
            )
        _sent[asked] += 1


async def _held_client(asked: JudgeOptions) -> AsyncGenerator[JudgeClient, None]:
    """Yields the client and closes it with the event loop, whose shutdown ends all async generators."""
    place = asyncio.get_running_loop(), asked
    headers = {"Content-Type": "application/json", **key_header(asked.api_key_env)}
    replies = ReplyCache(asked.cache)
    try:
        async with aiohttp.ClientSession(
            # No compression: a few bytes could expand to gigabytes.
            headers={"Accept-Encoding": "identity", **headers},
            auto_decompress=False,
            # `_slots` limits instead: a wait there costs no attempt its time.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=asked.timeout_s),
        ) as session:
            yield JudgeClient(asked, replies, session)
    finally:
        _clients.pop(place, None)
        replies.close()


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for part in response.content.iter_any():
        raw += part
        if len(raw) > MAX_ANSWER_BYTES:
            response.close()
            raise _TransientError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(raw)


def _content(raw: bytes) -> str:
    """The text in an answer of the chat API. Raises Refused if the judge declined."""
    try:
        choice = read_json(raw, _MAX_ANSWER_VALUES)["choices"][0]
        content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        filtered = choice.get("finish_reason") == "content_filter"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise _TransientError("an answer that is no chat completion") from None
    if refusal or filtered:
        raise CannotJudgeError("the judge declined")
    return content if isinstance(content, str) else ""


def _retry_after(value: str) -> float:
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0.0
