"""Validates what engines, tools and codecs return to an episode, and limits the time of their calls.

Engine, tools and codec are foreign code. Nothing that they return is used before it is checked here: token
ids are whole numbers from 0, log-probs are finite and there is one for each id, there is a result for each
call, and results hold documents. Anything else raises; episode.py and tool_executor.py turn the exception
into a typed failure.

An engine that returns more tokens than requested has not failed: the beginning of a sample is what the policy
would have written under the limit. The surplus is cut off together with its log-probs, here and nowhere else,
so that no row outgrows its budget.

The time limit does not help against a part that blocks the event loop: it stops everything.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Sequence, Sized
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, TypeVar

from rag_r1.agent.interfaces import Generation
from rag_r1.io.terminal_text import terminal_text
from rag_r1.protocols import SEARCH, CachedDocuments, Document, Failure, Refusal
from rag_r1.protocols.actions import well_formed

#: What the policy reads when a search failed. A fixed text: a tool's own may be hostile.
NO_ANSWER = "The search engine did not answer. Try another query, or answer with what is known."
TIMED_OUT = "The search did not answer in time. Try another query, or answer with what is known."

_NO_TOOL = "The tool {name} did not answer. Try another call, or answer with what is known."
_TOOL_KINDS = ("retriever", "tool")
T = TypeVar("T")


def failure_text(tool: str, late: bool = False) -> str:
    """What the policy reads when a call of this tool failed, or (`late`) took too long."""
    if tool != SEARCH:
        return _NO_TOOL.format(name=tool)
    return TIMED_OUT if late else NO_ANSWER


class CallTimeoutError(Exception):
    """A call exceeded its time limit."""


async def with_timeout(limit_s: float | None, call: Awaitable[T]) -> T:
    """The result of a call. Raises CallTimeoutError after `limit_s` seconds (None: no limit), and what the
    call raises.

    The call runs in a task of its own: if it ignores its cancellation, it is abandoned; if it is cancelled
    from elsewhere, that is a failure of the call and not a cancellation of the episode.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(call, loop=loop)
    ended = loop.create_future()
    end = partial(_end, ended)
    task.add_done_callback(end)
    timer = None if limit_s is None else loop.call_later(limit_s, end)
    try:
        await ended
    finally:
        if timer is not None:
            timer.cancel()
        if not task.done():
            task.cancel()
            task.add_done_callback(_take_exception)
    if not task.done():
        raise CallTimeoutError(f"no answer within {limit_s:g} s")
    if task.cancelled():
        raise RuntimeError("the call was cancelled from elsewhere")
    return task.result()


def _end(ended: asyncio.Future[None], task: Any = None) -> None:
    if not ended.done():
        ended.set_result(None)


def _take_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def error_line(error: Exception) -> str:
    """An error on one line of at most 200 characters for people, even if it cannot be turned into text."""
    if isinstance(error, CallTimeoutError):
        return str(error)
    try:
        return terminal_text(well_formed(f"{type(error).__name__}: {error}"), 200)
    except Exception:
        return type(error).__name__


def checked_ids(ids: Any) -> list[int]:
    """Token ids as a new list. Raises TypeError or OverflowError unless all are whole numbers from 0."""
    if not isinstance(ids, Sized) or isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"token ids must be a list of whole numbers, not {type(ids).__name__}")
    checked = list(ids)
    array("L", checked)  # checks every id, in C
    return checked


def checked_generation(out: Any, most: int) -> Generation:
    """What an engine returned, with at most `most` tokens. Raises TypeError, ValueError or OverflowError if
    it is no Generation, or one with impossible ids or log-probs."""
    if not isinstance(out, Generation):
        raise TypeError(f"the engine returned {type(out).__name__} instead of a Generation")
    ids, logprobs = checked_ids(out.token_ids), out.logprobs
    if logprobs is not None:
        if not isinstance(logprobs, Sized):
            raise TypeError(f"log-probs must be a list of numbers, not {type(logprobs).__name__}")
        logprobs = list(logprobs)
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} token ids but {len(logprobs)} log-probs")
        if not isfinite(sum(logprobs)):
            raise ValueError("log-probs that are not finite")
        logprobs = logprobs[:most]
    return Generation(ids[:most], logprobs, bool(out.aborted), str(out.detail))


def checked_results(
    results: Any, count: int, message: str = NO_ANSWER
) -> list[list[Document] | Failure | Refusal]:
    """What a tool returned for `count` calls; a result that is not a list of documents becomes a Failure with
    the text `message` for the policy. Raises TypeError or ValueError unless there is one for each call."""
    if not isinstance(results, Sequence):
        raise TypeError(f"the tool returned {type(results).__name__} instead of a list")
    if len(results) != count:
        raise ValueError(f"{len(results)} results for {count} calls")
    return [_checked_result(result, message) for result in results]


def _checked_result(result: Any, message: str) -> list[Document] | Failure | Refusal:
    if isinstance(result, Refusal):
        return result
    if isinstance(result, Failure):
        return result if result.kind in _TOOL_KINDS else replace(result, kind="tool")
    try:
        if not isinstance(result, Sequence) or not all(isinstance(item, Document) for item in result):
            raise TypeError("a result must be a list of Document, or a Failure")
        documents = map(_with_plain_score, result)
        return CachedDocuments(documents) if isinstance(result, CachedDocuments) else list(documents)
    except Exception as error:
        return Failure(message, "tool", error_line(error))


def _with_plain_score(document: Document) -> Document:
    """The document with a score that JSON can hold: numpy's numbers as floats, NaN and infinity as None."""
    score = document.score
    if score is None or (type(score) in (float, int) and isfinite(score)):
        return document
    return replace(document, score=float(score) if isfinite(score) else None)
