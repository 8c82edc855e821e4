"""The small interface that a search index implements.

A search is two stages, so that a server can run them at the same time for two batches: ``prepare`` turns
queries into what the index is asked with (vectors, word ids), ``find`` asks the index. A backend answers with
row numbers; ``index_source.py`` turns rows into documents. To add one: a class with both methods, a manifest
section that says what it needs, and a branch in ``index_source.open_backend``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval_server.guarantee import Guarantee

_BORDER = 8  # hits at the end of a list that belong to it only by a rounding, perhaps


@dataclass(frozen=True)
class Hit:
    """One found passage: its row in the passage file, and its score (larger is better), not rounded."""

    row: int
    score: float


def nested(search: Callable[[int], list[Hit]], topk: int, total: int, first: int = 32) -> list[Hit]:
    """The ``topk`` best hits of an index whose answer depends on how many it is asked for.

    ``search(depth)`` gives up to ``depth`` hits, best first. It is asked for 32, 128, 512, ... whatever topk
    is; each answer but the last gives all of its hits save the last few, which rounding may exchange, and
    adds to what the ones before it gave. So a shorter list is always the beginning of a longer one.
    ``total`` is the most that ``search`` can give.
    """
    hits: dict[int, Hit] = {}
    depth = first
    while True:
        found = search(min(depth, total))
        last = len(found) < depth or depth >= total
        for hit in found if last else found[: depth - _BORDER]:
            hits.setdefault(hit.row, hit)
        if last or len(hits) >= topk:
            return list(hits.values())[:topk]
        depth *= 4


class Backend(ABC):
    """A loaded search index.

    Each stage is called from one thread at a time; the two may run at once in different threads. A query's
    hits must not depend on the queries beside it, as far as its ``guarantee`` says, nor, but for their
    number, on topk: batches are formed from whoever asks at the moment, and results must not tell.
    """

    #: Whether the stages gain by running at once; see StagedSource.
    overlaps: bool = True
    #: What holds for a query's hits in whatever batch it is.
    guarantee: Guarantee = Guarantee.BITS

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
