"""Finds the ids that several passages of a corpus have, which an index refuses.

While a corpus is read, 8 bytes of a hash of each id are kept in memory. Only a corpus in which two of these
are equal is read again, for the places.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Self

import numpy as np

from rag_r1.corpus.reader import START, Corpus, CorpusPosition, Passage
from rag_r1.data.files.bad_rows import BadRows


class SeenIds:
    """The ids that have been read so far, as hashes."""

    def __init__(self) -> None:
        self._hashes = array("Q")

    @classmethod
    def until(cls, end: CorpusPosition, corpus: Corpus, *, progress: bool) -> Self:
        """Those that an earlier start has read, up to this place."""
        seen = cls()
        if end != START:
            for row, place in corpus.rows(progress=progress, doing="reading ids again"):
                if isinstance(row, Passage):
                    seen.add(row.id)
                if place == end:
                    break
        return seen

    def add(self, passage_id: str | None) -> None:
        """Note the id of the next passage."""
        if passage_id is not None:
            self._hashes.append(_hash_of(passage_id))

    def repeated(self, corpus: Corpus, *, progress: bool) -> BadRows:
        """The passages with the id of an earlier one, once all ids are noted."""
        in_order = np.sort(np.frombuffer(self._hashes, np.uint64))
        equal = frozenset(in_order[1:][in_order[1:] == in_order[:-1]].tolist())
        repeated, first_places = BadRows(), dict[str, str]()
        rows = corpus.rows(progress=progress, doing="finding repeated ids") if equal else ()
        for row, place in rows:
            if isinstance(row, ValueError) or row.id is None or _hash_of(row.id) not in equal:
                continue
            here = corpus.location(place)
            if (first := first_places.setdefault(row.id, here)) != here:
                repeated.add(here, f"the id {row.id!r} is that of {first}")
        return repeated


def refusal(repeated: BadRows) -> str:
    """The message with which a corpus with such passages is refused."""
    return f"{repeated.named()}. Give each passage its own id."


def _hash_of(passage_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "big")
