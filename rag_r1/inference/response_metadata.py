"""Reads the parts of a model server's response: its choice, message text, token usage and error message.

Responses are untrusted data: any part of them may be missing, wrong or hostile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_r1.io.bounded_json import read_json
from rag_r1.runs.response_cache import Usage

#: Most JSON values that are read from the body of an error.
_MAX_ERROR_VALUES = 10_000


def first_choice(data: Any) -> dict[str, Any]:
    """Return the first choice of a response. Raises ValueError if there is none, or its generation was
    aborted."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("it has no choices")
    if choices[0].get("finish_reason") in ("abort", "error"):
        raise ValueError("its generation was broken off")
    return choices[0]


def message_text(choice: Mapping[str, Any]) -> str | None:
    """Return the text of a chat completion's message, joined if it consists of parts; None if there is no
    text."""
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):  # parts, as some endpoints return them
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def usage_of(data: Any, prompt_tokens: int, completion_tokens: int) -> Usage:
    """Return the token usage of one request as its response states it, or else the estimates given here."""
    usage = data.get("usage") if isinstance(data, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if all(type(count) is int and 0 <= count < 1 << 40 for count in counts):
        return Usage(1, *counts)
    return Usage(1, prompt_tokens, completion_tokens, estimated=1)


def error_message(raw: bytes) -> str:
    """Return the message in the body of an error as a short line that begins with a colon; "" if there is
    none."""
    try:
        data = read_json(raw, _MAX_ERROR_VALUES)
        error = (data.get("error") or data.get("detail") or data) if isinstance(data, dict) else data
        text = (error.get("message") or error) if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        text = raw[:500].decode("utf-8", "replace")
    # It is shown on a terminal.
    printable = (char if char.isprintable() else " " for char in str(text or "")[:2000])
    line = " ".join("".join(printable).split())[:200]
    return f": {line}" if line else ""
