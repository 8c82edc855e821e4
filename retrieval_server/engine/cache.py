"""The latest answers, by query and topk. Least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """A dictionary of at most ``size`` entries (0: it remembers nothing) that counts its hits."""

    def __init__(self, size: int):
        self.size = size
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """The value, or None. Counts as a use."""
        try:
            self._entries.move_to_end(key)
        except KeyError:
            self.misses += 1
            return None
        self.hits += 1
        return self._entries[key]

    def put(self, key: Hashable, value: Value) -> None:
        """Remember a value that is not None."""
        if self.size:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self.size:
                self._entries.popitem(last=False)
