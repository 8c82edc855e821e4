"""Splits by entity: no entity of a question of train is in a question of test.

Which split an entity is in depends on the seed and its title only, so it is the same in every corpus that
has the page. A question whose entities are in both splits is dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def hashed(seed: int, *words: str) -> int:
    """A number from 0 up to 2**64 that depends on nothing else."""
    text = "\n".join((str(seed), *words))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def split_of(title: str, seed: int, test_share: float) -> str:
    """`train` or `test`."""
    return "test" if hashed(seed, "split", title) < test_share * 2**64 else "train"


def common_split(titles: Iterable[str], seed: int, test_share: float) -> str | None:
    """The split of all of these entities; None if they are in both."""
    splits = {split_of(title, seed, test_share) for title in titles}
    return splits.pop() if len(splits) == 1 else None
