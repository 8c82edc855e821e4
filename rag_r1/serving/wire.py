"""The wire format of the chat API: OpenAI's format, with additions under the key `rag_r1`.

Requests have OpenAI's form. `temperature` (0 by default, which is greedy, as in an evaluation) and `seed` are
used. Requests for several choices or for tools of the client are refused. Other keys are ignored, and
`rag_r1.ignored` names them, if they are not too many.

An answer is streamed in chunks. Their `delta` has `reasoning_content` and, in the end, the answer as
`content`. A chunk with an event has an empty `delta` and

    "rag_r1": {"event": "queued" | "searching" | "passages" | "rewrite" | "citations" | "ended", ...}

stream_events.py and citations.py describe the events. An answer in one piece has its reasoning and its text
in `message`, and

    "rag_r1": {"status", "searches", "citations", "history", "ignored", "turns", "seconds"}
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_r1.agent import Trajectory
from rag_r1.data.evidence import title_of
from rag_r1.protocols import Document
from rag_r1.serving.citations import citations

#: The most messages of a request, and the most characters of a message.
MAX_MESSAGES, MAX_CHARACTERS = 200, 32_000
#: The end of a stream.
DONE = b"data: [DONE]\n\n"
#: A comment, which clients ignore, to keep the connection alive.
KEEP_ALIVE = b": still here\n\n"


class ContentPart(BaseModel):
    """A part of a message's content. Only parts of the type `text` are accepted."""

    type: str
    text: str = ""


class Message(BaseModel):
    """One message of a conversation. Keys other than these two are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The whole text of the message. Raises ValueError if a part of its content is not text, or if it is
        too long."""
        parts = self.content if isinstance(self.content, list) else []
        if any(part.type != "text" for part in parts):
            raise ValueError("messages may contain text only")
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in parts)
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"a message may have at most {MAX_CHARACTERS} characters, not {len(text)}")
        return text


class StreamOptions(BaseModel):
    """The options of a streamed answer."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    seed: int | None = Field(None, ge=0, lt=1 << 31)
    n: int | None = None
    tools: list[Any] | None = None

    def refusal(self) -> str | None:
        """Return the reason to refuse the request; None if it can be answered."""
        if self.n not in (None, 1):
            return "n: there is one answer to a question; leave it out"
        if self.tools:
            return "tools: the agent has its own search; leave them out"
        return None

    @property
    def ignored(self) -> list[str]:
        """The keys of the request that have no effect: the first 20, each cut to 50 characters."""
        return sorted(str(key)[:50] for key in self.model_extra or {})[:20]


class TextRequest(BaseModel):
    """The body of POST /chat/, as Agentic RAG-R1's server defines it."""

    text: str = Field(max_length=MAX_CHARACTERS)


def sse(data: Mapping[str, Any]) -> bytes:
    """Return a server-sent event. JSON escapes line breaks, so a text cannot end the event early."""
    return b"data: " + json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode() + b"\n\n"


class ChunkBuilder:
    """Makes the chunks of one streamed answer."""

    def __init__(self, chat_id: str, model: str):
        self._head = _head(chat_id, "chat.completion.chunk", model)

    def delta(self, finish: str | None = None, **delta: str) -> bytes:
        """Return a chunk with text, or with the reason for the end of the answer (`finish`)."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**self._head, "choices": [choice]})

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        """Return a chunk with an event of the episode."""
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return sse({**self._head, "choices": [choice], "rag_r1": {"event": name, **data}})

    def usage(self, trajectory: Trajectory) -> bytes:
        """Return the last chunk for clients that request the numbers of tokens."""
        return sse({**self._head, "choices": [], "usage": usage_of(trajectory)})


def _head(chat_id: str, kind: str, model: str) -> dict[str, Any]:
    """Return the keys that every answer and every chunk has."""
    return {"id": chat_id, "object": kind, "created": int(time.time()), "model": model}


def completion(
    chat_id: str, model: str, trajectory: Trajectory, reasoning: str, extra_keys: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of an answer in one piece. `extra_keys` are further keys under `rag_r1`."""
    message: dict[str, Any] = {"role": "assistant", "content": trajectory.answer or ""}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {
        **_head(chat_id, "chat.completion", model),
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(trajectory)}],
        "usage": usage_of(trajectory),
        "rag_r1": {
            **episode_ending(trajectory),
            "searches": episode_searches(trajectory),
            "citations": citations(trajectory)["passages"],
            **extra_keys,
        },
    }


def episode_ending(trajectory: Trajectory) -> dict[str, Any]:
    """Return an episode's status (rag_r1/agent/trajectory.py), number of turns and seconds."""
    seconds = round(trajectory.seconds, 3)
    return {"status": trajectory.status, "turns": len(trajectory.turns), "seconds": seconds}


def episode_searches(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return all calls of an episode in the form of the event `passages`, each with the index of its turn."""
    return [
        {"turn": turn_index, **call_for_client(call.to_dict())}
        for turn_index, turn in enumerate(trajectory.turns)
        for call in turn.calls
    ]


def call_for_client(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's record (CallRecord.to_dict) in the form of the API, with the titles of its
    documents."""
    return {
        "tool": call["tool"],
        "arguments": call["arguments"],
        "status": call["status"],
        "seconds": round(call["seconds"], 3),
        "documents": [_document_for_client(Document(**document)) for document in call["documents"] or []],
    }


def _document_for_client(document: Document) -> dict[str, Any]:
    """Return a document with its title and the text without the title."""
    title, text = title_of(document), document.text or document.contents
    return {"id": document.id, "title": title, "text": text, "score": document.score}


def finish_reason(trajectory: Trajectory) -> Literal["stop", "length"]:
    """Return `stop` for an answer. Returns `length` if the episode ended without one, because turns or
    tokens were used up or a turn had no action."""
    return "stop" if trajectory.status == "answered" else "length"


def usage_of(trajectory: Trajectory) -> dict[str, int]:
    """Return the numbers of tokens with OpenAI's keys. Observations count as tokens of the prompt."""
    prompt, generated = trajectory.prompt_tokens + trajectory.observed_tokens, trajectory.generated_tokens
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
