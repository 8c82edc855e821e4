"""Finds ids that several passages of a corpus share; an index build would refuse such a corpus.

Only an 8-byte hash of each id is kept in memory. If two hashes are equal, the corpus is read a second time to
compare the ids themselves and to name the rows.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Self

import numpy as np

from rag_r1.corpus.reader import START, Corpus, CorpusPosition, Passage
from rag_r1.data.files.bad_rows import BadRows


class SeenIds:
    """The ids of all passages that have been read so far, as hashes."""

    def __init__(self) -> None:
        self._hashes = array("Q")

    @classmethod
    def until(cls, end: CorpusPosition, corpus: Corpus, *, progress: bool) -> Self:
        """Return the ids of all passages up to `end`, which an earlier run has scanned and which are read
        again."""
        ids = cls()
        if end != START:
            for row, position in corpus.rows(progress=progress, doing="reading ids again"):
                if isinstance(row, Passage):
                    ids.add(row.id)
                if position == end:
                    break
        return ids

    def add(self, passage_id: str | None) -> None:
        """Add the id of the next passage."""
        if passage_id is not None:
            self._hashes.append(_hash_of(passage_id))

    def repeated(self, corpus: Corpus, *, progress: bool) -> BadRows:
        """Return the passages with the id of an earlier one, as bad rows. All ids must have been added.
        Raises DataError for a broken file."""
        hashes = np.sort(np.frombuffer(self._hashes, np.uint64))
        equal_hashes = frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        repeated = BadRows()
        first_locations: dict[str, str] = {}
        rows = corpus.rows(progress=progress, doing="finding repeated ids") if equal_hashes else ()
        for row, position in rows:
            if isinstance(row, ValueError) or row.id is None or _hash_of(row.id) not in equal_hashes:
                continue
            location = corpus.location(position)
            if (first_location := first_locations.setdefault(row.id, location)) != location:
                repeated.add(location, f"the id {row.id!r} is that of {first_location}")
        return repeated


def refusal(repeated: BadRows) -> str:
    """Return the error message for a corpus with repeated ids, as `SeenIds.repeated` returns them."""
    return f"{repeated.named()}. Give each passage its own id."


def _hash_of(passage_id: str) -> int:
    """Return an 8-byte hash of the id, as a number."""
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "big")
