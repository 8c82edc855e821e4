"""Decides when a batch starts and which queries it contains, without threads, clocks or futures.

Queries of all connections wait in one queue. An idle encoder takes a batch when one is *due*:

- A batch is due as soon as it is full, or contains as many queries as can be expected: the largest number
  that was waiting or under way at once during the last few batches, minus the queries that are under way now.
  So a single client never waits, and 64 clients that send queries in step are served together.
- It is also due when no query has arrived for `max_wait_s` since the encoder became idle, and at the latest
  after ten times `max_wait_s`. Clients that have just been answered get this moment to send their next query.
  Without it the clients would split into groups that take turns, which is slower: a batch with a third of the
  queries still takes half as long as a whole one.

Half of a batch is reserved for the request that has waited longest. The other half is shared among all
waiting requests, which contribute one query each in turn. So a request with two thousand queries delays a
single query by one or two batches instead of thirty, and any number of single queries slows the big request
down to half its pace at most. Requests with one query each are served in order of arrival.

The queries of a failed batch come back as *suspects*. Each is tried alone, before all others, so that a query
that breaks the back end does not make any other query fail.

Every time is passed as an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: Number of recent batches that predict how many queries are about to arrive.
_RECENT_BATCHES = 4
#: A batch waits at most this many times `max_wait_s` for further queries.
_MAX_WAITS = 10


class BatchFormer(Generic[Item]):
    """The queue of waiting queries. Items must be hashable, and no two of them may be equal."""

    def __init__(self, max_batch: int, max_wait_s: float):
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        # `add` and `_dequeue` change the next three together, and nothing else changes what they contain.
        #: The request and the arrival time of each waiting item, oldest first.
        self._waiting: dict[Item, tuple[Hashable, float]] = {}
        #: The waiting items of each request; the oldest request and the oldest item first.
        self._requests: dict[Hashable, dict[Item, None]] = {}
        #: The same requests, in the order in which they may add an item to a batch.
        self._turns: OrderedDict[Hashable, None] = OrderedDict()
        self._suspects: dict[Item, None] = {}
        self._newest_arrival = float("-inf")
        self._recent_unanswered: deque[int] = deque([1], maxlen=_RECENT_BATCHES)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects)

    def add(self, item: Item, now: float, request: Hashable = None) -> None:
        """Append a query to the queue. Without a `request` the query counts as a separate request."""
        owner = item if request is None else request
        self._waiting[item] = (owner, now)
        self._newest_arrival = now
        self._requests.setdefault(owner, {})[item] = None
        self._turns.setdefault(owner)

    def add_suspects(self, items: list[Item]) -> None:
        """Take back the queries of a failed batch, to be tried one by one before all others."""
        self._suspects.update(dict.fromkeys(items))

    def remove(self, item: Item) -> bool:
        """Remove a query that is no longer needed. Returns whether it was still waiting."""
        if item in self._waiting:
            self._dequeue(item)
            return True
        is_suspect = item in self._suspects
        self._suspects.pop(item, None)
        return is_suspect

    def note_unanswered(self, count: int) -> None:
        """Record how many queries were waiting or under way when a batch was done."""
        self._recent_unanswered.append(count)

    def seconds_until_due(
        self, now: float, free_since: float = float("-inf"), under_way: int = 0
    ) -> float | None:
        """Return the seconds until a batch is due: 0.0 if one is due now, None if no query is waiting.

        `free_since` is the time at which the encoder became idle. `under_way` is the number of queries that
        are being processed elsewhere, for instance in the second stage.
        """
        if self._suspects:
            return 0.0
        if not self._waiting:
            return None
        if len(self._waiting) >= min(self.max_batch, max(self._recent_unanswered) - under_way):
            return 0.0
        _, oldest_arrival = next(iter(self._waiting.values()))
        quiet_since = max(self._newest_arrival, free_since)
        waiting_since = max(oldest_arrival, free_since)
        due = min(quiet_since + self.max_wait_s, waiting_since + _MAX_WAITS * self.max_wait_s)
        return max(0.0, due - now)

    def take(self) -> list[Item]:
        """Remove the next batch from the queue and return it: one suspect, or up to `max_batch` queries.

        The queue must not be empty.
        """
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
