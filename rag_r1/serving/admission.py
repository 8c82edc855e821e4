"""Admission control: how many chats run, how many wait, and when the next one is refused.

A chat enters, waits for its seat in the order of entering, and leaves: when it has ended, when its client has
gone, or when it fails. At most `running` chats have a seat and at most `waiting` wait for one; the next is
refused with the seconds after which a seat is likely to be free, estimated from how long chats took lately.
Nothing here depends on what a chat is. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

#: Least and most seconds after which a refused client may come back.
SOONEST_S, LATEST_S = 1, 60
#: Weight of the last chat in the mean of their seconds.
_RECENT = 0.2
#: What a chat is taken to last before one has ended.
_FIRST_GUESS_S = 5.0


class ServerFullError(Exception):
    """No room for another chat; `retry_after` is in whole seconds."""

    def __init__(self, retry_after: int):
        super().__init__("the server has as many chats as it takes")
        self.retry_after = retry_after


class AdmissionQueue:
    """See the top of the module."""

    def __init__(self, running: int, waiting: int):
        self.most_running, self.most_waiting = running, waiting
        self._seated: set[AdmissionTicket] = set()
        self._queue: deque[AdmissionTicket] = deque()
        self._mean_s = _FIRST_GUESS_S

    @property
    def running(self) -> int:
        """Chats that have a seat."""
        return len(self._seated)

    @property
    def waiting(self) -> int:
        """Chats that wait for one."""
        return len(self._queue)

    def enter(self) -> AdmissionTicket:
        """Take a seat, or a place in the queue. Raises ServerFullError."""
        ticket = AdmissionTicket(self)
        if self.running < self.most_running and not self._queue:
            self._seat(ticket)
        elif self.waiting < self.most_waiting:
            self._queue.append(ticket)
        else:
            raise ServerFullError(self._retry_after())
        return ticket

    def _retry_after(self) -> int:
        rounds = (self.waiting + 1) / self.most_running
        return max(SOONEST_S, min(LATEST_S, math.ceil(self._mean_s * rounds)))

    def _seat(self, ticket: AdmissionTicket) -> None:
        self._seated.add(ticket)
        ticket._admit()

    def _release(self, ticket: AdmissionTicket, seconds: float | None) -> None:
        if ticket in self._seated:
            self._seated.remove(ticket)
            if seconds is not None:
                self._mean_s += _RECENT * (seconds - self._mean_s)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        while self._queue and self.running < self.most_running:
            self._seat(self._queue.popleft())


class AdmissionTicket:
    """One chat's place. `ahead`: chats that wait before it, at the moment of entering."""

    def __init__(self, seats: AdmissionQueue):
        self._seats = seats
        self.ahead = seats.waiting
        self._seated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._since = 0.0

    @property
    def is_admitted(self) -> bool:
        """Has it got a seat?"""
        return self._seated.done()

    async def seat(self) -> None:
        """Wait for the seat."""
        await asyncio.shield(self._seated)

    def leave(self, *, finished: bool = False) -> None:
        """Give the seat, or the place in the queue, to the next. `finished`: the chat ran to its end, so its
        seconds count in the estimate. To leave twice changes nothing."""
        self._seats._release(self, time.monotonic() - self._since if finished else None)

    def _admit(self) -> None:
        self._since = time.monotonic()
        self._seated.set_result(None)
