"""The wire format of the chat API: OpenAI's messages, with our additions under `rag_r1`.

A request is read as OpenAI's. `temperature` (0 unless it is given: greedy, as in an evaluation) and `seed`
are used. What cannot be done (several choices, tools of the client) is refused; other keys that a client may
send are ignored, and named in `rag_r1.ignored`.

An answer streams as chunks. Their `delta` has `reasoning_content`, then `content`, which is the answer and
nothing else; a chunk with an event has an empty `delta` and

    "rag_r1": {"event": "queued" | "searching" | "passages" | "rewrite" | "citations" | "ended", ...}

(stream_events.py and citations.py describe them). An answer in one piece has the same in `message` and

    "rag_r1": {"status", "searches", "citations", "history", "ignored", "turns", "seconds"}
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_r1.agent import Trajectory
from rag_r1.serving.citations import citations, episode_searches

#: A request's limits: its messages, and the characters of one.
MAX_MESSAGES, MAX_CHARACTERS = 200, 32_000
DONE = b"data: [DONE]\n\n"
#: A comment, which clients skip: shows that the connection is alive.
KEEP_ALIVE = b": still here\n\n"


class ContentPart(BaseModel):
    """A piece of a message's content; only text is read."""

    type: str
    text: str = Field("", max_length=MAX_CHARACTERS)


class Message(BaseModel):
    """One message of a conversation. Of an assistant's only `content` is read."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CHARACTERS)] | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The whole content. Raises ValueError if a part of it is not text."""
        if not isinstance(self.content, list):
            return self.content or ""
        if any(part.type != "text" for part in self.content):
            raise ValueError("messages may contain text only")
        return "\n".join(part.text for part in self.content)


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
        """The reason to refuse the request; None if it can be answered."""
        if self.n not in (None, 1):
            return "n: there is one answer to a question; leave it out"
        if self.tools:
            return "tools: the agent has its own search; leave them out"
        return None

    @property
    def ignored(self) -> list[str]:
        """Keys that change nothing here."""
        return sorted(str(key)[:50] for key in self.model_extra or {})[:20]


class TextRequest(BaseModel):
    """The body of POST /chat/, as of Agentic RAG-R1's server."""

    text: str = Field(max_length=MAX_CHARACTERS)


def sse(data: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no line breaks of its own, so a text cannot end the event."""
    return b"data: " + json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode() + b"\n\n"


class ChunkBuilder:
    """The chunks of one streamed answer."""

    def __init__(self, chat_id: str, model: str):
        self._head = _head(chat_id, "chat.completion.chunk", model)

    def delta(self, finish: str | None = None, **delta: str) -> bytes:
        """A chunk with text, or with the reason of the end."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**self._head, "choices": [choice]})

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        """A chunk with an event of the episode."""
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return sse({**self._head, "choices": [choice], "rag_r1": {"event": name, **data}})

    def usage(self, trajectory: Trajectory) -> bytes:
        """The last chunk, with the numbers of tokens, for a client that has asked for them."""
        return sse({**self._head, "choices": [], "usage": usage_of(trajectory)})


def _head(chat_id: str, kind: str, model: str) -> dict[str, Any]:
    """The keys with which every answer and every chunk begins."""
    return {"id": chat_id, "object": kind, "created": int(time.time()), "model": model}


def completion(
    chat_id: str, model: str, trajectory: Trajectory, reasoning: str, extra_keys: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of an answer in one piece. `extra_keys`: further keys of its `rag_r1`."""
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
    """How an episode ended: its status (of rag_r1/agent/trajectory.py), turns and seconds."""
    seconds = round(trajectory.seconds, 3)
    return {"status": trajectory.status, "turns": len(trajectory.turns), "seconds": seconds}


def finish_reason(trajectory: Trajectory) -> str:
    """`stop` for an answer; `length` if turns or tokens were used up before, or a turn had no action."""
    return "stop" if trajectory.status == "answered" else "length"


def usage_of(trajectory: Trajectory) -> dict[str, int]:
    """Tokens in OpenAI's words: those that the policy read (prompt and observations), and wrote."""
    prompt, generated = trajectory.prompt_tokens + trajectory.observed_tokens, trajectory.generated_tokens
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
