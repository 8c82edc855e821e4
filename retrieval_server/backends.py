"""The small interface that a search index implements.

A search is two stages, so that a server can run them at the same time for two batches: ``prepare`` turns
queries into what the index is asked with (vectors, word ids), ``find`` asks the index. A backend answers with
row numbers; the retriever turns rows into documents. To add one: a class with both methods, a manifest
section that says what it needs, and a branch in ``retriever.open_backend``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hit:
    """One found passage: its row in the passage file, and its score (larger is better)."""

    row: int
    score: float


class Backend(ABC):
    """A loaded search index.

    Each stage is called from one thread at a time; the two may run at once in different threads. A query's
    hits must not depend on the queries beside it nor, but for their number, on topk: batches are formed from
    whoever asks at the moment, and results must not tell.
    """

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """What ``find`` needs of these queries."""

    @abstractmethod
    def find(self, prepared: Any, topk: int) -> list[list[Hit]]:
        """At most ``topk`` hits for each query, best first; the lists are in the queries' order."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Both stages."""
        return self.find(self.prepare(queries), topk)

    def close(self) -> None:  # noqa: B027 (most have nothing of that kind)
        """Let go of what the garbage collector does not (connections, processes). Nothing runs any more."""
