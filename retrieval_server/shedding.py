"""Refusing without reading, when there is no time even to read.

A refusal costs about as much as an accepted request does outside the engine: its body is read, parsed and
checked before anybody sees that it will not fit. At many times a server's capacity that work alone takes the
processor from the searches. So when the event loop runs late, and the engine would refuse one more query
anyway, a search is refused from its first line. While the loop keeps up every request is read: what is in the
cache, or under way already, is then answered at any load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_server.failures import error_answer
from retrieval_server.service import Refused

#: How often the event loop is looked at, and how late it must run, in seconds.
_EVERY_S, _LATE_S = 0.05, 0.1


class LoopWatch:
    """How many seconds late the event loop of ``watch`` came back from its latest sleep."""

    def __init__(self) -> None:
        self.late_s = 0.0

    async def watch(self) -> None:
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(_EVERY_S)
            self.late_s = time.monotonic() - asleep - _EVERY_S

    @property
    def late(self) -> bool:
        return self.late_s > _LATE_S


class Shed:
    """Answers a search at once when the loop is late and ``refusal(path)`` gives a reason to refuse it."""

    def __init__(self, app: ASGIApp, watch: LoopWatch, refusal: Callable[[str], Refused | None]):
        self._app, self._watch, self._refusal = app, watch, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and self._watch.late:
            refused = self._refusal(scope["path"])
            if refused is not None:
                answer = error_answer(refused.status, refused.error, refused.reason, refused.headers)
                return await answer(scope, receive, send)
        await self._app(scope, receive, send)
