"""Validates what engines, tools and codecs return to an episode.

Engines, tools and codecs may be anybody's code, so nothing that they return is used before it is checked
here. Token ids must be whole numbers from 0, log-probs must be finite with one for each id, and a tool must
return a result for each call. Anything else raises an exception, which episode.py and tool_executor.py turn
into a typed failure. A result that is not a list of documents becomes a Failure of its call alone. Numbers of
numpy and torch are accepted, and become plain ones, as JSON needs them.

An engine that returns more tokens than requested has not failed: the beginning of the sample is what the
policy would have written under the limit. The surplus tokens and their log-probs are cut off here and nowhere
else, so that no row exceeds its budget.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set, Sized
from dataclasses import replace
from math import isfinite
from typing import Any

from rag_r1.agent.failures import error_line
from rag_r1.agent.interfaces import Generation
from rag_r1.protocols import CachedDocuments, Document, Failure, Refusal

#: The kinds of Failure that a tool may return; the other kinds are those of an episode's other parts.
_TOOL_KINDS = ("retriever", "tool")


def checked_ids(ids: Any) -> list[int]:
    """Return token ids as a new list. Raises TypeError or OverflowError unless all are whole numbers from
    0."""
    # An array of "L", which are unsigned, checks every id in C.
    return array("L", _items(ids, "token ids must be a list of whole numbers")).tolist()


def _items(values: Any, expectation: str) -> list[Any]:
    """Return the items of a list, or of a tuple or array. Raises TypeError for anything else, with
    `expectation` as the beginning of the message."""
    if not isinstance(values, Sized) or isinstance(values, str | bytes | bytearray | Set | Mapping):
        raise TypeError(f"{expectation}, not {type(values).__name__}")
    return list(values)


def checked_generation(generation: Any, max_tokens: int) -> Generation:
    """Return the generation of an engine, cut to `max_tokens` tokens. Raises TypeError, ValueError or
    OverflowError if it is not a Generation, or has impossible ids or log-probs."""
    if not isinstance(generation, Generation):
        raise TypeError(f"the engine returned {type(generation).__name__} instead of a Generation")
    ids = checked_ids(generation.token_ids)
    logprobs = None
    if generation.logprobs is not None:
        logprobs = _checked_logprobs(generation.logprobs, len(ids))[:max_tokens]
    return Generation(ids[:max_tokens], logprobs, bool(generation.aborted), str(generation.detail))


def _checked_logprobs(logprobs: Any, count: int) -> list[float]:
    """Return log-probs as a new list. Raises TypeError or ValueError unless they are `count` finite
    numbers."""
    values = array("d", _items(logprobs, "log-probs must be a list of numbers")).tolist()
    if len(values) != count:
        raise ValueError(f"{count} token ids but {len(values)} log-probs")
    if not all(map(isfinite, values)):
        raise ValueError("log-probs that are not finite")
    return values


def checked_results(results: Any, count: int, message: str) -> list[list[Document] | Failure | Refusal]:
    """Return the results of a tool for `count` calls. A result that is not a list of documents becomes a
    Failure, with `message` as the text for the policy. Raises TypeError or ValueError unless there is one
    result for each call."""
    if not isinstance(results, Sequence):
        raise TypeError(f"the tool returned {type(results).__name__} instead of a list")
    if len(results) != count:
        raise ValueError(f"{len(results)} results for {count} calls")
    return [_checked_result(result, message) for result in results]


def _checked_result(result: Any, message: str) -> list[Document] | Failure | Refusal:
    """Return one result; a Failure if it is invalid, or if inspecting it raises. A Failure of a kind that is
    not a tool's becomes one of the kind `tool`."""
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
    """Return the document with a score that JSON can hold: a number of numpy becomes a float, NaN and
    infinity become None."""
    score = document.score
    if score is None or (type(score) in (float, int) and isfinite(score)):
        return document
    return replace(document, score=float(score) if isfinite(score) else None)
