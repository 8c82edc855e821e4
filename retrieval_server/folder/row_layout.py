"""Encodes vectors to rows of bytes and decodes them: 32 or 16 bits per value, or 8 bits with a scale per row.

Row `i` belongs to passage `i`. All rows of a file have the same number of bytes, so that the position of a
row can be computed, a file can be mapped, and an interrupted writer can resume after its last complete row.
The types are:

- `float32`: the vector of the encoder, 4 bytes per dimension;
- `float16`: the vector rounded to 16 bits, 2 bytes per dimension;
- `int8`: the scale as a float32 (4 bytes), then whole numbers from -127 to 127, 1 byte per dimension. The
  scale is the largest absolute value of the row divided by 127, so that the error of a value is at most half
  the scale.

Decoding rows and encoding them again in the same type yields the same bytes. A compressed index scores its
candidates from such a file (search/vectors/stored_rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrieval_server.errors import ValueTooLargeError

RowType = Literal["float32", "float16", "int8"]
#: The suffix of a file of such rows.
SUFFIXES: dict[RowType, str] = {"float32": ".f32", "float16": ".f16", "int8": ".i8"}
_VALUE_BYTES: dict[RowType, int] = {"float32": 4, "float16": 2, "int8": 1}
_SCALE_BYTES = 4
_LARGEST: dict[RowType, float] = {
    "float32": float(np.finfo(np.float32).max),
    "float16": float(np.finfo(np.float16).max),
    "int8": float(np.finfo(np.float32).max),
}


@dataclass(frozen=True)
class RowLayout:
    """The layout of a row of `dimension` values of the type `kind`, little-endian on every machine."""

    dimension: int
    kind: RowType = "float32"

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one row."""
        scale = _SCALE_BYTES if self.kind == "int8" else 0
        return scale + _VALUE_BYTES[self.kind] * self.dimension

    def encode(self, vectors: np.ndarray, first_row: int = 0) -> bytes:
        """Return the bytes of float32 vectors, (rows, dimension). Errors count rows from `first_row` on.

        Raises ValueError for a value that is not finite, and ValueTooLargeError for one that 16 bits cannot
        hold.
        """
        largest = np.abs(vectors).max(axis=1, initial=0.0)
        fits = largest <= _LARGEST[self.kind]  # also False for a value that is not a number
        if not fits.all():
            row = int(np.flatnonzero(~fits)[0])
            description = f"vector {first_row + row} has a value of {largest[row]}, which"
            if np.isfinite(largest[row]):
                raise ValueTooLargeError(f"{description} {self.kind} cannot hold")
            raise ValueError(f"{description} is not finite")
        if self.kind == "float32":
            return np.ascontiguousarray(vectors, "<f4").tobytes()
        if self.kind == "float16":
            return vectors.astype("<f2").tobytes()
        scales = (largest / 127).astype("<f4")
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.nan_to_num(vectors / scales[:, None], nan=0.0, posinf=0.0, neginf=0.0)
        rows = np.empty((len(vectors), self.row_bytes), np.uint8)
        rows[:, :_SCALE_BYTES] = scales[:, None].view(np.uint8)
        rows[:, _SCALE_BYTES:] = np.clip(np.rint(steps), -127, 127).astype(np.int8).view(np.uint8)
        return rows.tobytes()

    def decode(self, rows: np.ndarray) -> np.ndarray:
        """Return the float32 vectors, (rows, dimension), of the bytes, (rows, row_bytes)."""
        rows = np.ascontiguousarray(rows)
        if self.kind == "float32":
            return rows.view("<f4").astype(np.float32, copy=False)
        if self.kind == "float16":
            return rows.view("<f2").astype(np.float32)
        scales = np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view("<f4").astype(np.float32)
        return rows[:, _SCALE_BYTES:].view(np.int8).astype(np.float32) * scales
