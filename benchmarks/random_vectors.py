"""Random unit vectors that are drawn when they are read, so that millions of them need no memory."""

from __future__ import annotations

import math

import numpy as np

#: Number of vectors that are drawn with one seed.
_DRAWN_AT_ONCE = 4096


class RandomVectors:
    """`passages` random unit vectors of a dimension, float32, which are drawn whenever a slice is read.

    Each block of rows is drawn with its own seed, so that a row is the same in every slice.
    """

    def __init__(self, passages: int, dimension: int):
        self.dimension = dimension
        self._passages = passages

    def __len__(self) -> int:
        return self._passages

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the vectors of a slice of step 1: (rows, dimension)."""
        start, stop, _ = rows.indices(len(self))
        blocks = range(start // _DRAWN_AT_ONCE, math.ceil(stop / _DRAWN_AT_ONCE))
        shape = (_DRAWN_AT_ONCE, self.dimension)
        drawn = [np.empty((0, self.dimension), np.float32)]
        drawn += [np.random.default_rng(block).standard_normal(shape, dtype=np.float32) for block in blocks]
        first = blocks.start * _DRAWN_AT_ONCE
        vectors = np.concatenate(drawn)[start - first : max(start, stop) - first]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
