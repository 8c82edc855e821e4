"""Admission control: limits how many chats run and how many wait, and refuses the others.

A chat enters the queue, waits for a slot in order of arrival, and leaves when it has ended or failed, or when
its client has gone. At most `max_running` chats have a slot, and at most `max_waiting` wait for one. Any
other chat is refused with the number of seconds after which a slot is likely to be free, which is estimated
from the duration of recent chats. All objects belong to one event loop, and know nothing about the chats.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

#: Limits of the seconds after which a refused client is asked to try again.
MIN_RETRY_S, MAX_RETRY_S = 1, 60
#: Weight of the latest chat in the moving average of the chats' durations.
_LATEST_WEIGHT = 0.2
#: Duration of a chat, in seconds, that is assumed until the first one has ended.
_ASSUMED_S = 5.0


class ServerFullError(Exception):
    """There is no room for another chat. `retry_after_s` is the estimated number of seconds until there
    is."""

    def __init__(self, retry_after_s: int):
        super().__init__("the server has as many chats as it takes")
        self.retry_after_s = retry_after_s


class AdmissionQueue:
    """Slots for `max_running` chats, and a queue in which `max_waiting` more can wait."""

    def __init__(self, max_running: int, max_waiting: int):
        self.max_running = max_running
        self.max_waiting = max_waiting
        self._admitted: set[AdmissionTicket] = set()
        self._queue: deque[AdmissionTicket] = deque()
        self._mean_chat_s = _ASSUMED_S

    @property
    def running(self) -> int:
        """The number of chats that have a slot."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """The number of chats that wait for a slot."""
        return len(self._queue)

    def enter(self) -> AdmissionTicket:
        """Take a slot, or a place in the queue. Raises ServerFullError if there is neither."""
        ticket = AdmissionTicket(self)
        if self.running < self.max_running and not self._queue:
            self._give_slot(ticket)
        elif self.waiting < self.max_waiting:
            self._queue.append(ticket)
        else:
            raise ServerFullError(self._retry_after_s())
        return ticket

    def _retry_after_s(self) -> int:
        """Return the estimated number of whole seconds until another chat would get a slot."""
        rounds = (self.waiting + 1) / self.max_running
        return max(MIN_RETRY_S, min(MAX_RETRY_S, math.ceil(self._mean_chat_s * rounds)))

    def _give_slot(self, ticket: AdmissionTicket) -> None:
        """Let the chat of a ticket begin."""
        self._admitted.add(ticket)
        ticket._admit()

    def _release(self, ticket: AdmissionTicket, seconds: float | None) -> None:
        """Free the ticket's slot or its place in the queue, and admit chats that wait. `seconds` is the
        duration of the chat, None if it did not run to its end."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
            if seconds is not None:
                self._mean_chat_s += _LATEST_WEIGHT * (seconds - self._mean_chat_s)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        while self._queue and self.running < self.max_running:
            self._give_slot(self._queue.popleft())


class AdmissionTicket:
    """A chat's slot, or its place in the queue for one."""

    def __init__(self, queue: AdmissionQueue):
        #: The number of chats that were waiting when this one entered.
        self.ahead = queue.waiting
        self._queue = queue
        self._admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._admitted_at_s = 0.0  # by time.monotonic()

    @property
    def is_admitted(self) -> bool:
        """Whether the chat has got a slot."""
        return self._admission.done()

    async def wait_for_slot(self) -> None:
        """Wait until the chat has a slot."""
        await asyncio.shield(self._admission)

    def leave(self, *, finished: bool = False) -> None:
        """Free the slot, or the place in the queue, for the next chat. The duration of a chat that ran to its
        end (`finished`) is used for the estimate. A second call has no effect."""
        self._queue._release(self, time.monotonic() - self._admitted_at_s if finished else None)

    def _admit(self) -> None:
        """Note the time, and end `wait_for_slot`."""
        self._admitted_at_s = time.monotonic()
        self._admission.set_result(None)
