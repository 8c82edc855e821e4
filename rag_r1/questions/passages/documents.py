"""Reads the passages of a corpus from which questions are written, with their documents, sources and splits.

Passages with the same title form a document; passages without a title are grouped by URL, and those without
a URL are documents by themselves. The source of a document is the host of its URL, or the file that contains
it if it has none. The split of a document depends only on the seed and on the document's key, so no document
is in both splits.

From a large corpus a random sample of documents is kept, up to a number of passages, so that memory does not
grow with the corpus. The sample consists of the documents with the smallest hashes, and therefore does not
depend on the order of the corpus. Searches still find every passage, because the retrieval server has all.
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

from rag_r1.corpus.inputs import passages_of
from rag_r1.corpus.reader import Corpus, Passage
from rag_r1.data.evidence import title_key
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.files.near_duplicates import jaccard, near_duplicates
from rag_r1.io.errors import DataError
from rag_r1.rollouts.requests import seeded_fraction

SPLITS = ("train", "test")
#: Passages with fewer characters are too short to ask about.
MIN_CHARS = 30
#: Jaccard similarity from which one passage counts as a copy of another.
_COPY_SIMILARITY = 0.8
#: Number of characters at the beginning of two passages that are compared.
_COMPARED_CHARS = 1000


@dataclass(frozen=True)
class SourcePassage:
    """A passage with the document, the source and the split that it belongs to."""

    id: str
    contents: str = field(repr=False)
    title: str = ""
    url: str | None = None
    #: Key of the document: the normalised title, else the URL, else the id.
    document: str = ""
    #: Host of the URL, or the name of the corpus file if there is none.
    source: str = ""
    #: `train` or `test`.
    split: str = "train"

    @property
    def query(self) -> str:
        """A query with which an agent would look for this passage: its title or its first 100 characters."""
        return self.title or self.contents[:100]


@dataclass(frozen=True)
class PassagePool:
    """The passages from which questions are written, in the order of the corpus."""

    passages: tuple[SourcePassage, ...]
    #: Number of passages in the whole corpus, including those that are not in the pool.
    n_read: int

    @cached_property
    def by_id(self) -> dict[str, SourcePassage]:
        """Map the id of each passage to the passage."""
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def first_passages(self) -> dict[str, SourcePassage]:
        """Map the key of each document to its first passage."""
        return {passage.document: passage for passage in reversed(self.passages)}

    @property
    def sha256(self) -> str:
        """A hash of the ids, texts and sources of all passages."""
        digest = hashlib.sha256()
        for passage in self.passages:
            digest.update(f"{passage.id}\0{passage.contents}\0{passage.source}\0".encode())
        return digest.hexdigest()


def read_pool(paths: Sequence[Path], seed: int, test_share: float, limit: int) -> PassagePool:
    """Read a corpus and sample at most `limit` of its passages.

    `test_share` is the share of the documents in the test split. Raises DataError if a path is given twice,
    if a row is not a passage, if two sampled passages have the same id, or if no passage is long enough.
    """
    sample = _SmallestRanks(limit)
    count = 0
    for passage, file in passages_of(Corpus(paths)):
        count += 1
        if len(passage.contents) >= MIN_CHARS:
            entry = _source_passage(passage, file.name, seed, test_share)
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
    """Assign a passage to its document, source and split.

    `file` is the name of the corpus file, which is the source of a passage without a URL.
    """
    document = title_key(passage.title or "") or passage.url or passage.id or ""
    return SourcePassage(
        id=passage.id or "",
        contents=passage.contents,
        title=passage.title or "",
        url=passage.url,
        document=document,
        source=_host(passage.url) or file,
        split="test" if seeded_fraction(seed, "split", document) < test_share else "train",
    )


def _host(url: str | None) -> str | None:
    """Return the host in a URL; None if there is none, or the URL cannot be read."""
    try:
        return urlsplit(url or "").hostname
    except ValueError:  # an unclosed bracket, or a character that would become a slash
        return None


def is_copy(contents: str, other: str) -> bool:
    """Whether two passages have the same or nearly the same text, as copies of a page do."""
    return jaccard(contents[:_COMPARED_CHARS], other[:_COMPARED_CHARS]) >= _COPY_SIMILARITY


def first_of_copies(passages: Sequence[SourcePassage]) -> dict[str, str]:
    """Map the id of each passage to the id of the first passage with the same or nearly the same text.

    A passage that is no copy is mapped to itself. The time is linear in the number of passages. Raises
    DataError if the package rensa is not installed.
    """
    keys = {passage.id: question_key(passage.contents[:_COMPARED_CHARS]) for passage in passages}
    texts = list(dict.fromkeys(keys.values()))  # each once, since `near_duplicates` leaves out equal ones
    first: dict[str, str] = {text: text for text in texts}
    pairs = near_duplicates(texts, texts.__getitem__, _COPY_SIMILARITY)
    for pair in sorted(pairs, key=lambda pair: pair.later):
        first[texts[pair.later]] = first[texts[pair.first]]
    id_of: dict[str, str] = {}
    return {id_: id_of.setdefault(first[key], id_) for id_, key in keys.items()}


class _SmallestRanks:
    """Keeps at most `limit` passages: those with the smallest ranks."""

    def __init__(self, limit: int):
        self.limit = limit
        #: A heap. Rank and position are negative, so the passage with the largest rank is removed first.
        self.items: list[tuple[float, int, SourcePassage]] = []

    def add(self, rank: float, position: int, passage: SourcePassage) -> None:
        """Keep a passage if its rank is among the smallest so far; `position` is its number in the corpus."""
        item = (-rank, -position, passage)
        if len(self.items) < self.limit:
            heapq.heappush(self.items, item)
        else:
            heapq.heappushpop(self.items, item)

    def in_order(self) -> Iterator[SourcePassage]:
        """Return the kept passages, in the order of the corpus."""
        return (passage for _, _, passage in sorted(self.items, key=lambda item: -item[1]))
