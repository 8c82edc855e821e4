"""What the engine can search: the contract between it and whatever finds documents.

There are two kinds. A ``StagedSource`` works in this process, on processor or GPU: the engine forms batches
and runs its two stages in threads (``IndexSource``, an index folder, is one). A
``RemoteSource`` waits for somebody else's answer, so batches would only make the fast wait for the slow: the
engine hands it each query on its own, many at once, in the event loop. Queue, limits, deadline, cache and
the merging of equal queries are the engine's, the same for both.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrieval_server.folder.passages import Passage
from retrieval_server.guarantee import Guarantee


@dataclass(frozen=True)
class Retrieved:
    """A document and its score for one query."""

    passage: Passage
    score: float


def rounded(hit: Retrieved) -> Retrieved:
    """The hit with its score as a float32, which is what is sent; order is decided before this."""
    return Retrieved(hit.passage, struct.unpack("<f", struct.pack("<f", hit.score))[0])


@dataclass(frozen=True)
class Description:
    """What a source is, as ``/ready`` tells; None where a source has no such thing."""

    backend: str
    passages: int | None = None
    corpus_sha256: str | None = None
    encoder: str | None = None
    separator: str | None = None
    guarantee: Guarantee | None = None


class SearchFailed(Exception):
    """A source cannot answer a query now, for a reason that its client should read.

    ``status`` is the HTTP status of the answer, ``error`` its fixed word, ``retry_after`` in whole seconds.
    The text goes to clients and into logs: no key, no credentials.
    """

    def __init__(self, status: int, error: str, reason: str, retry_after: int | None = None):
        super().__init__(reason)
        self.status, self.error, self.reason, self.retry_after = status, error, reason, retry_after


class Source(ABC):
    """Finds documents for a query; what the queries beside it can change says its description's guarantee."""

    @property
    @abstractmethod
    def description(self) -> Description:
        """What this is."""


class StagedSource(Source):
    """A search in two stages, each for as many threads at a time as it says; the two may run at once."""

    #: Batches that may be in the first stage and in the second at a time.
    encoders: int = 1
    searchers: int = 1
    #: Whether a batch in the first stage and one in the second gain by running at once: not if both want
    #: all cores of the processor.
    overlaps: bool = True

    @abstractmethod
    def warm_up(self) -> None:
        """Answer one question, so that the first user does not wait for lazy initialisation."""

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """The first stage: what ``find`` needs of these queries."""

    @abstractmethod
    def find(self, prepared: Any, topks: Sequence[int]) -> Sequence[Sequence[Retrieved]]:
        """The second stage: at most ``topks[i]`` documents for query ``i``, best first."""

    def close(self) -> None:  # noqa: B027 (most hold nothing that the garbage collector does not free)
        """Let go of connections and processes; called once, in any thread, after the last answer."""


class RemoteSource(Source):
    """A search elsewhere. ``answer`` runs in the engine's event loop, at most ``concurrency`` at a time."""

    concurrency: int

    @abstractmethod
    async def answer(self, query: str, topk: int) -> Sequence[Retrieved]:
        """At most ``topk`` documents, best first. Raises SearchFailed."""

    async def close(self) -> None:
        """Give connections back; called in the same event loop, after the last answer."""
