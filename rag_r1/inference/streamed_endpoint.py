"""An endpoint whose completions are streamed, so that somebody can see them grow (streaming.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rag_r1.inference.client import Answer, Endpoint
from rag_r1.inference.streaming import OnText
from rag_r1.runs.response_cache import Usage


class StreamingEndpoint:
    """An endpoint whose completions are streamed, for one episode."""

    def __init__(self, endpoint: Endpoint, on_text: OnText):
        self.endpoint, self.on_text = endpoint, on_text

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Answer],
        useless: Callable[[Usage], None] = lambda usage: None,
        most_tokens: int = 0,
    ) -> tuple[Answer, Usage]:
        """See Endpoint.post."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return await self.endpoint.post(path, streamed, read, useless, most_tokens, self.on_text)
