"""Reads embeddings that were encoded elsewhere, one slice at a time.

The name of a file determines its format:

- `.npy`: an array (passages, dimension) of 16, 32 or 64 bits;
- `.fbin`: the numbers of rows and dimensions in 32 bits each, and then the vectors in 32 bits (the big-ann
  benchmarks);
- `.memmap`, `.f32`, `.raw`: bare vectors, such as FlashRAG's `emb_*.memmap`, in 32 or 16 bits, which are told
  apart by the number of passages.

Several files form one array in the order in which they are named. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval_server.errors import UserError
from retrieval_server.folder.bad_rows import NAMED

_BARE = (".memmap", ".f32", ".raw")
_SUFFIXES = (".npy", ".fbin", *_BARE)
_FBIN_HEADER = 8  # bytes
#: Number of vectors whose values are checked before the work.
_CHECKED_ROWS = 1000


def check_name(path: Path) -> None:
    """Raise UserError if the file does not exist, or its name does not determine its format."""
    if path.suffix.lower() not in _SUFFIXES:
        ends = ", ".join(_SUFFIXES)
        raise UserError(f"--embeddings {path}: the name must end in one of {ends}, which gives the format.")
    if not path.is_file():
        raise UserError(f"--embeddings {path}: no such file. Give the vectors of the passages.")


def check_file(path: Path) -> None:
    """Raise UserError as `check_name` does, for a malformed file or one without vectors, and if the first
    vectors are not all finite.

    The size of bare vectors is checked only when the encoder has been loaded and the dimension is known.
    """
    check_name(path)
    if path.suffix.lower() in _BARE:
        return
    array = _map_file(path, np.dtype(np.float32), None)
    if not len(array):
        raise UserError(f"--embeddings {path}: no vector in it. Fetch or write it again.")
    if (bad := np.flatnonzero(~np.isfinite(array[:_CHECKED_ROWS]).all(axis=1))).size:
        rows = ", ".join([*map(str, bad[:NAMED]), *(["..."] if bad.size > NAMED else [])])
        raise UserError(f"--embeddings {path}: values are not finite in row {rows}. Encode them again.")


class Embeddings:
    """The rows of mapped embedding files: `embeddings[a:b]` is a float32 array (b - a, dimension).

    Call `choose_dtype` first, which determines the number format of bare files. Raises UserError for a
    malformed file or another dimension.
    """

    def __init__(self, files: Sequence[Path], dimension: int):
        self.dimension = dimension
        for path in files:
            check_name(path)
        self._files = list(files)
        self._arrays: list[np.ndarray] = []
        self._open(np.float32)

    def choose_dtype(self, rows: int) -> None:
        """Determine whether bare files have 16 or 32 bits. Raises UserError if neither fits `rows` rows."""
        count = len(self)
        if count == rows:
            return
        if any(path.suffix.lower() in _BARE for path in self._files):
            self._open(np.float16)
            if len(self) == rows:
                return
        raise UserError(f"--embeddings: {count} vectors for {rows} passages. Row i must be passage i.")

    def __len__(self) -> int:
        return sum(len(array) for array in self._arrays)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the vectors of a slice of step 1. Raises UserError for a value that is not finite."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are read in slices of step 1")
        slices = [np.empty((0, self.dimension), np.float32)]
        first_row = 0
        for array in self._arrays:
            low, high = max(start - first_row, 0), min(stop - first_row, len(array))
            if low < high:
                slices.append(np.asarray(array[low:high], np.float32))
            first_row += len(array)
        vectors = np.concatenate(slices)
        if not np.isfinite(vectors).all():
            bad = start + int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise UserError(f"--embeddings: row {bad} holds a value that is not finite. Encode it again.")
        return vectors

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of these rows, (rows, dimension). Raises UserError as a slice does."""
        return np.concatenate([self[row : row + 1] for row in rows.tolist()])

    def _open(self, bare: type[np.floating]) -> None:
        """Map the files. Bare files are read as vectors of this type."""
        self._arrays = [_map_file(path, np.dtype(bare), self.dimension) for path in self._files]


def _map_file(path: Path, bare: np.dtype, dimension: int | None) -> np.ndarray:
    """Return the mapped vectors of a file, (rows, dimension).

    `bare` is the type of the values in a bare file, for which the dimension is needed. For other files the
    dimension may be None and is then not checked. Raises UserError for a malformed file or another dimension.
    """
    suffix = path.suffix.lower()
    try:
        size = path.stat().st_size
        if suffix == ".npy":
            array = np.lib.format.open_memmap(path, mode="r")  # np.load would also open an archive
            if array.ndim != 2 or array.dtype.kind != "f":
                raise ValueError(f"an array {array.shape} of {array.dtype}, not (passages, dimension)")
        elif suffix == ".fbin":
            if size < _FBIN_HEADER:
                raise ValueError(f"{size} bytes are less than the header of such a file")
            rows, width = np.fromfile(path, "<i4", 2).tolist()
            if rows < 0 or width < 1 or size != _FBIN_HEADER + 4 * rows * width:
                raise ValueError(f"{rows} rows of {width} dimensions do not take {size} bytes")
            array = np.memmap(path, "<f4", "r", _FBIN_HEADER, (rows, width))
        else:
            row_bytes = bare.itemsize * dimension
            if size == 0 or size % (2 * dimension):
                raise ValueError(f"{size} bytes are not whole vectors of {dimension} dimensions")
            array = np.memmap(path, bare.newbyteorder("<"), "r", 0, (size // row_bytes, dimension))
    except Exception as error:  # NumPy raises any error of Python's parser for a damaged header
        raise UserError(f"--embeddings {path}: {error}. Fetch or write it again.") from None
    if dimension is not None and array.shape[1] != dimension:
        raise UserError(
            f"--embeddings {path}: {array.shape[1]} dimensions; the encoder's have {dimension}. "
            "Give the encoder that made them."
        )
    return array
