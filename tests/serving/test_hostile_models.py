"""The chat server before model servers that ignore what they are asked for."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from aiohttp import web

from rag_r1.serving.arguments import to_eval_arguments
from rag_r1.serving.launch import LaunchedAgent
from rag_r1.serving.page import PageInfo
from tests.fakes.scripted_vllm import Policy
from tests.serving.running_chat import (
    GOLD,
    QUESTION,
    always_right,
    arguments,
    chat_server_at,
    events,
    question,
    tokenizer,
)

pytestmark = pytest.mark.slow  # loads a tokenizer

#: Bytes after which even a hostile server of these tests gives up; nobody reads so far.
END = 256 << 20


def piece(**choice: Any) -> bytes:
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


STREAMS = {
    "text": piece(text="word " * 30),
    "text with tokens": piece(text="word " * 30, token_ids=[1]),
    "small events": b"data: {}\n" * 1000,
    "comments": b": still here\n\n" * 1000,
    "one line": b"x" * 65536,
    "reasoning": piece(reasoning_content="hm " * 100),
    "spaces": piece(text=" " * 150, token_ids=[1]),
    "half tags": piece(text="<search", token_ids=[1]),
}


@dataclass
class Hostile(Policy):
    """Answers as it should, but for a question that names one of STREAMS: that is streamed again and again
    until the client has gone."""

    sent: list[int] = field(default_factory=list)

    async def _stream(self, request: web.Request, *options: Any) -> web.StreamResponse:
        prompt = self.tokenizer.decode((await request.json())["prompt"])
        named = [stream for name, stream in STREAMS.items() if f"Who sends {name}?" in prompt]
        if not named:
            return await super()._stream(request, *options)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        with suppress(ConnectionError):
            while sent < END:
                await response.write(named[0])
                sent += len(named[0])
        self.sent.append(sent)
        return response


def test_streams_without_an_end_end_their_own_chats_and_no_others(tmp_path):
    with Hostile(tokenizer(), {QUESTION: GOLD}, always_right) as policy:
        args = arguments(policy.url, tmp_path, max_response_tokens=512)
        evaluation = to_eval_arguments(args).model_copy(update={"retries": 0})
        with chat_server_at(args, LaunchedAgent(evaluation, PageInfo())) as chat:
            hostile = [question(f"Who sends {name}?", stream=True) for name in STREAMS for _ in range(2)]
            honest = [question(), question(stream=True)] * 4

            async def main() -> list[httpx.Response]:
                async with httpx.AsyncClient(base_url=chat.url, timeout=120, trust_env=False) as client:
                    chats = [client.post("/v1/chat/completions", json=body) for body in hostile + honest]
                    return await asyncio.gather(*chats)

            answers = asyncio.run(main())
            assert chat.health() == {"status": "ok", "running": 0, "waiting": 0}
    for answer in answers[: len(hostile)]:
        assert events(answer.text)[-1]["error"]["code"] == "model_failed"
    for answer in answers[len(hostile) :: 2]:
        assert answer.json()["choices"][0]["message"]["content"] == GOLD
    for answer in answers[len(hostile) + 1 :: 2]:
        assert GOLD in answer.text and events(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"
    # Each was broken off beyond what 512 tokens can have, and what lay in sockets.
    assert len(policy.sent) == len(hostile) and max(policy.sent) < 16 << 20
