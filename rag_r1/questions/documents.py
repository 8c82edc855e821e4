"""Reads the passages of a corpus from which questions are written: documents, their sources and splits.

A document is all passages with one title (else one address, else one id). Its source is the host of its
address or, without one, the file that it stands in. Which split a document is in depends on the seed and on
its name alone, so no document, and no passage, is ever in both.

Of a large corpus only the documents whose hash is smallest are kept, at most so many passages: memory does
not depend on the corpus. A search still finds all passages, which the retrieval server has.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from rag_r1.corpus.reader import Corpus, Passage
from rag_r1.data.evidence import title_key
from rag_r1.data.files.near_duplicates import jaccard, near_duplicates
from rag_r1.io.errors import DataError
from rag_r1.rollouts.requests import seeded_fraction

SPLITS = ("train", "test")
#: Shorter passages, in characters, hold nothing to ask about.
MIN_CHARS = 30
#: Similarity from which a passage is a copy of another one.
_COPY_SIMILARITY = 0.8
#: Characters of the passages that are compared.
_COMPARED_CHARS = 1000


@dataclass(frozen=True)
class SourcePassage:
    """A passage with the key of its document, the source of the document, and its split."""

    id: str
    contents: str = field(repr=False)
    title: str = ""
    url: str | None = None
    document: str = ""
    source: str = ""
    split: str = "train"

    @property
    def query(self) -> str:
        """The query of an agent that looks for this passage: its title, else its first 100 characters."""
        return self.title or self.contents[:100]


@dataclass(frozen=True)
class PassagePool:
    """Passages in the order of the corpus; `n_read`: the number of passages in the whole corpus."""

    passages: tuple[SourcePassage, ...]
    n_read: int

    @cached_property
    def by_id(self) -> dict[str, SourcePassage]:
        """Id -> passage."""
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def first_passages(self) -> dict[str, SourcePassage]:
        """Document -> its first passage."""
        return {passage.document: passage for passage in reversed(self.passages)}

    @property
    def sha256(self) -> str:
        """A hash of the ids, texts and sources of all passages."""
        digest = hashlib.sha256()
        for passage in self.passages:
            digest.update(f"{passage.id}\0{passage.contents}\0{passage.source}\0".encode())
        return digest.hexdigest()


def read_pool(paths: Sequence[Path], seed: int, test_share: float, limit: int) -> PassagePool:
    """Read the passages of a corpus, at most `limit`. Raises DataError for a row that is not a passage, for
    an id of two passages, and if no passage is long enough."""
    sample = _SmallestRanks(limit)
    count = 0
    for passage, file in _passages(Corpus(paths)):
        count += 1
        if len(passage.contents) >= MIN_CHARS:
            entry = _source_passage(passage, file, seed, test_share)
            sample.add(seeded_fraction(seed, "pool", entry.document), count, entry)
    pool = PassagePool(tuple(sample.in_order()), count)
    if not pool.passages:
        raise DataError(
            f"{', '.join(map(str, paths))}: no passage of at least {MIN_CHARS} characters: give a "
            "corpus of texts"
        )
    if len(pool.by_id) < len(pool.passages):
        repeated_id, _ = Counter(passage.id for passage in pool.passages).most_common(1)[0]
        raise DataError(f"two passages have the id {repeated_id!r}: give each its own, and index them again")
    return pool


def _source_passage(passage: Passage, file: str, seed: int, test_share: float) -> SourcePassage:
    """The passage with its document. `file`: the file's name, which is the source of a passage without an
    address."""
    document = title_key(passage.title or "") or passage.url or passage.id or ""
    return SourcePassage(
        id=passage.id or "",
        contents=passage.contents,
        title=passage.title or "",
        url=passage.url,
        document=document,
        source=(urlsplit(passage.url).hostname if passage.url else None) or file,
        split=SPLITS[seeded_fraction(seed, "split", document) < test_share],
    )


def _passages(corpus: Corpus) -> Iterator[tuple[Passage, str]]:
    """(passage, name of its file) of all rows. Raises DataError for a row that is not a passage."""
    for row, position in corpus.rows():
        if isinstance(row, ValueError):
            raise DataError(f"{corpus.location(position)}: {row}: repair the corpus (`rag-r1 corpus check`)")
        yield row, corpus.files[position.file].name


def is_copy(contents: str, other: str) -> bool:
    """Whether two passages have the same text, or nearly, as copies of a page do."""
    return jaccard(contents[:_COMPARED_CHARS], other[:_COMPARED_CHARS]) >= _COPY_SIMILARITY


def first_of_copies(passages: Sequence[SourcePassage]) -> dict[str, str]:
    """Id of a passage -> id of the first one whose text it has, or nearly; its own for most. Linear in the
    number of passages. Raises DataError if the package rensa is missing."""
    ids = list(dict.fromkeys(passage.id for passage in passages))
    contents = {passage.id: passage.contents[:_COMPARED_CHARS] for passage in passages}
    texts = [contents[name] for name in ids]
    first: dict[str, str] = {name: name for name in ids}
    for pair in sorted(
        near_duplicates(texts, texts.__getitem__, _COPY_SIMILARITY), key=lambda pair: pair.later
    ):
        first[ids[pair.later]] = first[ids[pair.first]]
    return first


class _SmallestRanks:
    """Keeps the passages with the smallest ranks, at most `limit`."""

    def __init__(self, limit: int):
        self.limit = limit
        self.items: list[tuple[float, int, SourcePassage]] = []  # a heap of negative ranks and positions

    def add(self, rank: float, position: int, passage: SourcePassage) -> None:
        """Keep a passage if its rank is among the smallest so far; `position`: its number in the corpus."""
        item = (-rank, -position, passage)
        if len(self.items) < self.limit:
            heapq.heappush(self.items, item)
        else:
            heapq.heappushpop(self.items, item)

    def in_order(self) -> Iterator[SourcePassage]:
        """The kept passages, in the order of the corpus."""
        return (passage for _, _, passage in sorted(self.items, key=lambda item: -item[1]))
