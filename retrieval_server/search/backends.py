"""The interface of a search back end.

A search has two stages, so that a server can run them at the same time for two batches: `prepare` turns
queries into what the index searches for (vectors, word ids), `find` searches. A back end answers with row
numbers; `index_source.py` turns rows into documents. To add one: a class with both methods, a manifest
section that says what it needs, and a branch in `index_source.open_backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval_server.determinism import Determinism

_BORDER_HITS = 8  # hits at the end of a list that may be in it only because of rounding


@dataclass(frozen=True)
class Hit:
    """A passage that was found: its row in the passage file, and its unrounded score; larger is better."""

    row: int
    score: float


def search_nested(
    search: Callable[[int], list[Hit]], topk: int, total: int, first_depth: int = 32
) -> list[Hit]:
    """The `topk` best hits of an index whose answer depends on the number of hits that it is to give.

    `search(depth)` gives up to `depth` hits, best first. Its depths are `first_depth`, four times that,
    and so on, whatever topk is. Each call adds its hits to those of the calls before; of all but the last
    call the final few are left out, since rounding may exchange them. So a shorter list is always the
    beginning of a longer one. `total` is the most that `search` can give.
    """
    hits: dict[int, Hit] = {}
    depth = first_depth
    while True:
        best = search(min(depth, total))
        is_last = len(best) < depth or depth >= total
        for hit in best if is_last else best[: depth - _BORDER_HITS]:
            hits.setdefault(hit.row, hit)
        if is_last or len(hits) >= topk:
            return list(hits.values())[:topk]
        depth *= 4


class Backend(ABC):
    """A loaded search index.

    Each stage is called from one thread at a time; the two may run at once in different threads. Batches hold
    whatever queries come in together, so a query's hits must not depend on the other queries, as far as the
    `guarantee` says, nor on topk, except for their number.
    """

    #: Whether it is faster to run the stages at once; see StagedSource.
    overlaps: bool = True
    #: What holds for a query's hits whatever batch it is in.
    guarantee: Determinism = Determinism.BITS

    @property
    def paged_in(self) -> float | None:
        """The share, 0 to 1, of a mapped index that was read ahead; None if nothing is read ahead."""
        return None

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """Turn queries into what `find` needs."""

    @abstractmethod
    def find(self, prepared: Any, topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first; the lists are in the queries' order."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The hits of both stages, as `find` returns them."""
        return self.find(self.prepare(queries), topk)

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Release what the garbage collector does not (connections, processes); called when nothing runs."""
