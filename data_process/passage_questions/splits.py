"""Assigns entities to splits, so that no entity appears in questions of both train and test.

The split of an entity depends only on the seed and on the title at the end of its links (the director of a
film, say), so that most bridge questions stay inside a split. Questions whose entities are in different
splits are dropped (`command.py`).
"""

from __future__ import annotations

import hashlib


def hash_words(seed: int, *words: str) -> int:
    """Return a hash of the seed and the words, as a whole number below 2**64."""
    text = "\n".join((str(seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def split_of(title: str, seed: int, test_share: float) -> str:
    """Return `train` or `test` for the entities whose links end at this title."""
    return "test" if hash_words(seed, "split", title) < test_share * 2**64 else "train"
