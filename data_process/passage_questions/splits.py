"""Splits by entity: no entity of a question of train is in a question of test.

Which split an entity is in depends on the seed and on a title only: that of the entity at the end of its
links (the director of a film, say), so that most bridges are inside a split. The other questions whose
entities are in both splits are dropped.
"""

from __future__ import annotations

import hashlib


def hash_words(seed: int, *words: str) -> int:
    """A hash of the seed and the words: a whole number from 0 to below 2**64."""
    text = "\n".join((str(seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def split_of(title: str, seed: int, test_share: float) -> str:
    """`train` or `test`, for the entities whose links end at this title."""
    return "test" if hash_words(seed, "split", title) < test_share * 2**64 else "train"
