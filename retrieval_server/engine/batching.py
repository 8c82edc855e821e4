"""Decides when to start which batch, without threads, clocks or futures.

Queries of all connections wait in one queue. A free encoder takes a batch when one is *due*:

- as soon as a full batch is waiting, or as many queries as can be expected: the most that were waiting or
  under way at once during the last few batches, less those under way now. So a client that is alone never
  waits, and sixty-four clients that send queries in step are served together;
- or when no query has come for `max_wait_s` since the encoder became free, and after ten times that in any
  case. So queries that came while it was working wait a moment for the clients that it has just answered and
  that send their next query. Without that moment the clients split into groups that take turns, and a batch
  of a third of the queries takes half as long as a whole one.

What is in a batch: half of it is for the request that has waited longest, the other half is shared among all
waiting requests, one query each in turn. So a request of two thousand queries delays a single query by a
batch or two, not by thirty, and single queries, however many, slow the big request down to half its pace at
most. Requests of one query each are served in order of arrival.

Queries of a batch that failed come back as *suspects*: each is tried alone, before all others, so that one
query that breaks the back end makes no other query fail.

Time is an argument everywhere, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: Number of latest batches from which to guess how many queries are about to arrive.
_RECENT_BATCHES = 4
#: A batch waits at most this many times `max_wait_s` for further queries.
_MAX_WAITS = 10


class BatchFormer(Generic[Item]):
    """The queue of waiting queries. Items are compared by identity and must be hashable."""

    def __init__(self, max_batch: int, max_wait_s: float):
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self._waiting: dict[Item, tuple[Hashable, float]] = {}  # item -> its request, its arrival
        self._requests: dict[Hashable, dict[Item, None]] = {}  # oldest first
        self._turns: OrderedDict[Hashable, None] = OrderedDict()  # the same requests, next in turn first
        self._suspects: dict[Item, None] = {}
        self._newest_arrival = float("-inf")
        self._recent_unanswered: deque[int] = deque([1], maxlen=_RECENT_BATCHES)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects)

    def add(self, item: Item, now: float, request: Hashable = None) -> None:
        """Append a query at the end of the queue; `request` None: it is a request of its own."""
        owner = item if request is None else request
        self._waiting[item] = (owner, now)
        self._newest_arrival = now
        self._requests.setdefault(owner, {})[item] = None
        self._turns.setdefault(owner)

    def add_suspects(self, items: list[Item]) -> None:
        """Take back the queries of a failed batch, to be tried one by one before all others."""
        self._suspects.update(dict.fromkeys(items))

    def remove(self, item: Item) -> bool:
        """Remove a query that is no longer wanted; False if it is not waiting (any more)."""
        if item in self._waiting:
            self._dequeue(item)
            return True
        is_suspect = item in self._suspects
        self._suspects.pop(item, None)
        return is_suspect

    def note_unanswered(self, count: int) -> None:
        """Note how many queries were waiting or under way when a batch was done."""
        self._recent_unanswered.append(count)

    def seconds_until_due(
        self, now: float, free_since: float = float("-inf"), under_way: int = 0
    ) -> float | None:
        """Seconds until a batch is due: 0.0 now, None if no query waits.

        `free_since` is the time at which the encoder became idle, `under_way` the number of queries that
        are being worked on elsewhere, for instance in the second stage.
        """
        if self._suspects:
            return 0.0
        if not self._waiting:
            return None
        if len(self._waiting) >= min(self.max_batch, max(self._recent_unanswered) - under_way):
            return 0.0
        _, arrived = next(iter(self._waiting.values()))
        began = max(arrived, free_since)
        due = min(
            max(self._newest_arrival, free_since) + self.max_wait_s, began + _MAX_WAITS * self.max_wait_s
        )
        return max(0.0, due - now)

    def take(self) -> list[Item]:
        """The batch to run now, removed from the queue: one suspect, else up to `max_batch` queries."""
        if self._suspects:
            suspect = next(iter(self._suspects))
            del self._suspects[suspect]
            return [suspect]
        oldest = next(iter(self._requests))
        batch = [item for item, _ in zip(self._requests[oldest], range(self.max_batch // 2), strict=False)]
        for item in batch:
            self._dequeue(item)
        while self._turns and len(batch) < self.max_batch:
            request = next(iter(self._turns))
            item = next(iter(self._requests[request]))
            self._turns.move_to_end(request)
            self._dequeue(item)
            batch.append(item)
        return batch

    def _dequeue(self, item: Item) -> None:
        """Remove a waiting query from the queue and from the turns of its request."""
        request, _ = self._waiting.pop(item)
        waiting = self._requests[request]
        del waiting[item]
        if not waiting:
            del self._requests[request], self._turns[request]
