"""Gathers the queries of several turns into batches, each sent as a task of its own.

New queries that arrive within a millisecond or two of each other (`gather_s`) are sent together: an engine
ends many turns in one step, and a request takes more CPU time than the queries in it. A batch leaves when its
oldest queries have waited that long, or earlier when it is full. The queries of a turn stay together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class QueryBatcher:
    """Gathers turns, each a list of queries, for at most `gather_s` seconds (0: not at all) and until
    `max_queries` wait. `send` is called with the turns of a batch; bound to the event loop of the first."""

    def __init__(
        self, gather_s: float, max_queries: int, send: Callable[[list[list[str]]], Coroutine[Any, Any, None]]
    ):
        self._gather_s, self._max_queries, self._send = gather_s, max_queries, send
        self._tasks: set[asyncio.Task[None]] = set()
        #: Turns whose queries wait for others, and the timer that ends their wait.
        self._turns: list[list[str]] = []
        self._departure: asyncio.TimerHandle | None = None

    def add(self, queries: list[str]) -> None:
        """Send the queries of a turn together with others that are waiting already or arrive soon."""
        waiting = sum(map(len, self._turns))
        if waiting + len(queries) > self._max_queries:
            self._depart()
            waiting = 0
        self._turns.append(queries)
        if not self._gather_s or waiting + len(queries) >= self._max_queries:
            self._depart()
        elif self._departure is None:
            self._departure = asyncio.get_running_loop().call_later(self._gather_s, self._depart)

    def drain(self) -> list[list[str]]:
        """The turns that wait, which are then no longer sent."""
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None
        turns, self._turns = self._turns, []
        return turns

    async def cancel(self) -> None:
        """Cancel what is being sent, and wait until it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _depart(self) -> None:
        if turns := self.drain():
            # A task of its own: if a trajectory is cancelled, the others still get their answers.
            task = asyncio.create_task(self._send(turns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
