"""The interface of a search back end.

A search has two stages, so that a server can run them at the same time for two batches: `prepare` converts
the queries to what the index searches for (vectors or word ids), and `find` searches. A back end returns row
numbers; `index_source.py` turns these into documents. A new kind of index needs a class with both methods, a
section of the manifest with its settings, and a branch in `index_source.open_backend`. A user's own back end
needs only the class (custom_backend.py). `search_nested` helps the back ends of libraries whose results for
few hits are not always the beginning of those for many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval_server.determinism import Determinism

#: Hits at the end of a list that may belong to it only because of rounding.
_BORDER_HITS = 8


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    #: The row of the passage file.
    row: int
    #: The unrounded score; larger is better.
    score: float


def search_nested(
    search: Callable[[int], list[Hit]], topk: int, total: int, first_depth: int = 32
) -> list[Hit]:
    """Return the `topk` best hits of an index whose results depend on the number of requested hits.

    `search(depth)` returns up to `depth` hits, best first, and never more than `total`. It is called with
    `first_depth`, then with four times as many, and so on until there are enough hits. Each call adds its new
    hits to those of the previous calls. The last few hits of a call are ignored, since rounding may swap
    them, unless it returned all that the index has. So a shorter list is always the beginning of a longer
    one.
    """
    hits: dict[int, Hit] = {}
    depth = first_depth
    while True:
        best = search(min(depth, total))
        is_last = len(best) < depth or depth >= total
        for hit in best if is_last else best[: max(depth - _BORDER_HITS, 0)]:
            hits.setdefault(hit.row, hit)
        if is_last or len(hits) >= topk:
            return list(hits.values())[:topk]
        depth *= 4


class Backend(ABC):
    """A loaded search index.

    Each stage is called from one thread at a time; the two stages may run at once in different threads. A
    batch contains whatever queries arrive together. So the hits of a query must not depend on the other
    queries, as far as `guarantee` says, and topk may only change their number.
    """

    #: Whether it is faster to run both stages at once; see StagedSource.
    overlaps: bool = True
    #: What holds for the hits of a query, whatever batch it is in.
    guarantee: Determinism = Determinism.BITS
    #: The number format in which the back end encodes queries; None if it does not encode them.
    query_dtype: str | None = None

    @property
    def paged_in(self) -> float | None:
        """The share, 0 to 1, of a mapped index that was read ahead; None if nothing is read ahead."""
        return None

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """Convert the queries to what `find` needs."""

    @abstractmethod
    def find(self, prepared: Any, topk: int) -> list[list[Hit]]:
        """Return at most `topk` hits for each query, best first, in the order of the queries."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Run both stages and return the hits as `find` does."""
        return self.find(self.prepare(queries), topk)

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Release connections and processes. Called when no search is running."""
