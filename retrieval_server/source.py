"""The interface of a source, that is, of anything that the engine can search.

There are two kinds. A `StagedSource` computes on a CPU or GPU: the engine forms batches and runs the two
stages of the source in threads. `IndexSource`, an index folder, is one. A `RemoteSource` waits for another
service: the engine calls it in the event loop with one query per call and many calls at once, because in a
batch fast queries would wait for slow ones. The engine provides the queue, limits, deadline, cache and
merging of equal queries for both kinds.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from retrieval_server.determinism import Determinism
from retrieval_server.errors import SearchFailedError
from retrieval_server.folder.manifest import Manifest
from retrieval_server.folder.passages import Passage


@dataclass(frozen=True)
class ScoredPassage:
    """A document and its score for one query."""

    passage: Passage
    score: float


def round_score(hit: ScoredPassage) -> ScoredPassage:
    """Return the hit with its score rounded to float32, as it is sent. Hits must be sorted before."""
    return ScoredPassage(hit.passage, struct.unpack("<f", struct.pack("<f", hit.score))[0])


@dataclass(frozen=True)
class SourceDescription:
    """The description of a source, as `/ready` shows it; `IndexStatus` in server/wire.py explains the fields.

    None means that the source does not have such a property.
    """

    backend: str
    passages: int | None = None
    corpus_sha256: str | None = None
    encoder: str | None = None
    encoder_sha256: str | None = None
    separator: str | None = None
    max_length: int | None = None
    query_prefix: str | None = None
    query_mode: str | None = None
    query_dtype: str | None = None
    passage_dtype: str | None = None
    guarantee: Determinism | None = None
    #: The share, 0 to 1, of a mapped index that was read ahead; None if nothing is read ahead.
    paged_in: float | None = None


def describe_index(manifest: Manifest) -> SourceDescription:
    """Return the description of an index as far as its manifest has it; a source adds what it measures."""
    description = SourceDescription(manifest.backend, manifest.count, manifest.corpus.sha256)
    if manifest.dense is None:
        return description
    encoder = manifest.dense.encoder
    return replace(
        description,
        encoder=encoder.name,
        encoder_sha256=encoder.sha256,
        separator=encoder.separator,
        max_length=encoder.max_length,
        query_prefix=encoder.query_prefix,
        query_mode=encoder.query_mode,
        passage_dtype=encoder.passage_dtype,
    )


class Source(ABC):
    """Finds documents for a query. `description.guarantee` says how far other queries may affect them."""

    @property
    @abstractmethod
    def description(self) -> SourceDescription:
        """The description that `/ready` shows."""

    def documents(self, ids: Sequence[str]) -> list[Passage | None]:
        """Return the whole documents with these ids, in the same order; None for an unknown id.

        This may take seconds. Raises SearchFailedError if the source does not support it.
        """
        reason = f"a source of kind {self.description.backend} gives no documents by id"
        raise SearchFailedError(404, "no_documents", reason)


class StagedSource(Source):
    """A search in two stages, which may run at the same time for different batches."""

    #: The numbers of batches that may be in the first and in the second stage at the same time.
    encoders: int = 1
    searchers: int = 1
    #: Whether it is faster to run both stages at once, which is not the case if both use all cores of the
    #: CPU.
    overlaps: bool = True

    @abstractmethod
    def warm_up(self) -> None:
        """Answer one query, so that the first client does not wait for lazy initialisation."""

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """Run the first stage: convert the queries to what `find` needs."""

    @abstractmethod
    def find(self, prepared: Any, topks: Sequence[int]) -> Sequence[Sequence[ScoredPassage]]:
        """Run the second stage: return at most `topks[i]` documents for query `i`, best first."""

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Release connections and processes. Called once, in any thread, after the last answer."""


class RemoteSource(Source):
    """A search by another service."""

    #: The largest number of calls of `answer` at the same time.
    concurrency: int

    @abstractmethod
    async def answer(self, query: str, topk: int) -> Sequence[ScoredPassage]:
        """Return at most `topk` documents, best first. Raises SearchFailedError."""

    async def close(self) -> None:
        """Close connections. Called in the same event loop, after the last answer."""
