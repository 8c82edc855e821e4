"""Admission control: how many chats run, how many wait, and when the next one is refused.

A chat enters, waits for its seat in the order of entering, and leaves: when it has ended, when its client has
gone, or when it fails. At most `max_running` chats have a seat and at most `max_waiting` wait for one; the
next is refused with the seconds after which a seat is likely to be free, estimated from how long chats took
lately. Nothing here depends on what a chat is. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

#: Least and most seconds after which a refused client is asked to try again.
MIN_RETRY_S, MAX_RETRY_S = 1, 60
#: Weight of the latest chat in the moving average of their seconds.
_LATEST_WEIGHT = 0.2
#: Assumed seconds of a chat, until one has ended.
_ASSUMED_S = 5.0


class ServerFullError(Exception):
    """There is no room for another chat; `retry_after_s`: whole seconds until there may be."""

    def __init__(self, retry_after_s: int):
        super().__init__("the server has as many chats as it takes")
        self.retry_after_s = retry_after_s


class AdmissionQueue:
    """Seats for `max_running` chats, and a queue for `max_waiting` more."""

    def __init__(self, max_running: int, max_waiting: int):
        self.max_running = max_running
        self.max_waiting = max_waiting
        self._seated: set[AdmissionTicket] = set()
        self._queue: deque[AdmissionTicket] = deque()
        self._mean_s = _ASSUMED_S

    @property
    def running(self) -> int:
        """Chats that have a seat."""
        return len(self._seated)

    @property
    def waiting(self) -> int:
        """Chats that wait for a seat."""
        return len(self._queue)

    def enter(self) -> AdmissionTicket:
        """Take a seat, or a place in the queue. Raises ServerFullError."""
        ticket = AdmissionTicket(self)
        if self.running < self.max_running and not self._queue:
            self._seat(ticket)
        elif self.waiting < self.max_waiting:
            self._queue.append(ticket)
        else:
            raise ServerFullError(self._retry_after_s())
        return ticket

    def _retry_after_s(self) -> int:
        """Estimated whole seconds until the next chat would get a seat."""
        rounds = (self.waiting + 1) / self.max_running
        return max(MIN_RETRY_S, min(MAX_RETRY_S, math.ceil(self._mean_s * rounds)))

    def _seat(self, ticket: AdmissionTicket) -> None:
        self._seated.add(ticket)
        ticket._admit()

    def _release(self, ticket: AdmissionTicket, seconds: float | None) -> None:
        """Take the ticket's seat or place away, and seat those that wait. `seconds`: how long the chat ran,
        None if it did not end by itself."""
        if ticket in self._seated:
            self._seated.remove(ticket)
            if seconds is not None:
                self._mean_s += _LATEST_WEIGHT * (seconds - self._mean_s)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        while self._queue and self.running < self.max_running:
            self._seat(self._queue.popleft())


class AdmissionTicket:
    """A chat's claim to a seat. `ahead`: chats that waited before it when it entered."""

    def __init__(self, seats: AdmissionQueue):
        self._seats = seats
        self.ahead = seats.waiting
        self._seated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seated_at = 0.0  # time.monotonic()

    @property
    def is_admitted(self) -> bool:
        """Whether it has had a seat."""
        return self._seated.done()

    async def seat(self) -> None:
        """Wait for the seat."""
        await asyncio.shield(self._seated)

    def leave(self, *, finished: bool = False) -> None:
        """Give the seat, or the place in the queue, to the next. `finished`: the chat ran to its end, so its
        seconds count in the estimate. Leaving twice changes nothing."""
        self._seats._release(self, time.monotonic() - self._seated_at if finished else None)

    def _admit(self) -> None:
        self._seated_at = time.monotonic()
        self._seated.set_result(None)
