"""The interface of a source: what the engine searches.

There are two kinds. A `StagedSource` computes, on CPU or GPU: the engine forms batches and runs its two
stages in threads (`IndexSource`, an index folder, is one). A `RemoteSource` waits for the answer of
another service, where batches would only make fast queries wait for slow ones: the engine passes it one query
at a time, many of them at once, in the event loop. Queue, limits, deadline, cache and the merging of equal
queries are the engine's, and the same for both.
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
    """The hit with its score rounded to float32, as it is sent; the order is decided before."""
    return ScoredPassage(hit.passage, struct.unpack("<f", struct.pack("<f", hit.score))[0])


@dataclass(frozen=True)
class SourceDescription:
    """The description of a source, as `/ready` shows it; None for what a source does not have."""

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
    #: The share, 0 to 1, of a mapped index that was read ahead; None where nothing is read ahead.
    paged_in: float | None = None


def describe_index(manifest: Manifest, **overrides: Any) -> SourceDescription:
    """The description of an index by its manifest; `overrides` replace or add fields."""
    description = SourceDescription(manifest.backend, manifest.count, manifest.corpus.sha256)
    if manifest.dense is not None:
        encoder = manifest.dense.encoder
        description = replace(
            description,
            encoder=encoder.name,
            encoder_sha256=encoder.sha256,
            separator=encoder.separator,
            max_length=encoder.max_length,
            query_prefix=encoder.query_prefix,
            query_mode=encoder.query_mode,
            passage_dtype=encoder.passage_dtype,
        )
    return replace(description, **overrides)


class Source(ABC):
    """Finds documents for a query; how far other queries may affect them: `description.guarantee`."""

    @property
    @abstractmethod
    def description(self) -> SourceDescription:
        """The description that `/ready` shows."""

    def documents(self, ids: Sequence[str]) -> list[Passage | None]:
        """The whole documents with these ids, in their order; None where there is none. May take seconds.
        Raises SearchFailedError if this source cannot give documents by id."""
        reason = f"a source of kind {self.description.backend} gives no documents by id"
        raise SearchFailedError(404, "no_documents", reason)


class StagedSource(Source):
    """A search in two stages, which may run at the same time for different batches."""

    #: Batches that may be in the first stage, and in the second, at a time.
    encoders: int = 1
    searchers: int = 1
    #: Whether it is faster to run the two stages at once: not if both use all cores of the CPU.
    overlaps: bool = True

    @abstractmethod
    def warm_up(self) -> None:
        """Answer one query, so that the first client does not wait for lazy initialisation."""

    @abstractmethod
    def prepare(self, queries: Sequence[str]) -> Any:
        """The first stage: turn queries into what `find` needs."""

    @abstractmethod
    def find(self, prepared: Any, topks: Sequence[int]) -> Sequence[Sequence[ScoredPassage]]:
        """The second stage: at most `topks[i]` documents for query `i`, best first."""

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Release connections and processes; called once, in any thread, after the last answer."""


class RemoteSource(Source):
    """A search by another service. At most `concurrency` calls of `answer` run at once."""

    concurrency: int

    @abstractmethod
    async def answer(self, query: str, topk: int) -> Sequence[ScoredPassage]:
        """At most `topk` documents, best first. Raises SearchFailedError."""

    async def close(self) -> None:
        """Close connections; called in the same event loop, after the last answer."""
