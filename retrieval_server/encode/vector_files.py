"""Encodes passages into vector files, block by block, and reads them back.

Passages are encoded in blocks and appended to a file of rows (folder/row_layout.py), so memory does not grow
with the corpus and a run that was killed resumes after its last whole block. Blocks have fixed borders: a
resumed run encodes the same batches as an undisturbed one, and ends with the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import UserError, ValueTooLargeError
from retrieval_server.folder.passages import PassageStore
from retrieval_server.folder.row_layout import RowLayout, RowType

BLOCK = 1024  # passages encoded and written at once


def encode_rows(
    store: PassageStore,
    encoder: Encoder,
    path: Path,
    *,
    start: int = 0,
    stop: int | None = None,
    kind: RowType = "float32",
    batch_size: int = 64,
    progress: bool = True,
    label: str = "encoding",
) -> None:
    """Append the vectors of rows `start` to `stop` (excluded; None: all) to the file `path`.

    They are stored as rows of the type `kind`. Resumes after the file's last whole block; part of a block,
    as a kill leaves it, is encoded again. Raises UserError, which names the passage, for a vector that cannot
    be stored.
    """
    stop = len(store) if stop is None else stop
    layout = RowLayout(encoder.section.dimension, kind)
    row_bytes = layout.row_bytes
    stored = path.stat().st_size // row_bytes if path.exists() else 0
    encoded = min(stored, stop - start) // BLOCK * BLOCK
    texts = store.iter_contents(start + encoded, stop)
    with (
        path.open("ab") as stream,
        tqdm(total=stop - start, initial=encoded, desc=label, unit=" passages", disable=not progress) as bar,
    ):
        stream.truncate(encoded * row_bytes)
        for first_row in range(start + encoded, stop, BLOCK):
            block = list(islice(texts, BLOCK))
            vectors = encoder.encode_passages(block, batch_size)
            stream.write(_encode_block(layout, vectors, first_row, encoder.section.name))
            stream.flush()
            bar.update(len(block))
        os.fsync(stream.fileno())


def _encode_block(layout: RowLayout, vectors: np.ndarray, first_row: int, encoder: str) -> bytes:
    """The bytes of vectors, of rows from `first_row` on. Raises UserError for one that cannot be stored."""
    try:
        return layout.encode(vectors, first_row)
    except ValueTooLargeError as error:
        raise UserError(f"{encoder}: of the passages, {error}. Take --preset small or exact.") from None
    except ValueError as error:
        raise UserError(f"{encoder}: of the passages, {error}. Encode with --dtype float32.") from None


class VectorFiles:
    """The rows of files, one file after another: `vectors[a:b]` is a float32 array (b - a, dimension).

    All files hold rows of the type `kind`. A slice is read from disk each time and not kept.
    """

    def __init__(self, files: Sequence[Path], dimension: int, kind: RowType = "float32"):
        self.dimension = dimension
        self.layout = RowLayout(dimension, kind)
        self.files = list(files)
        sizes = [path.stat().st_size // self.layout.row_bytes for path in self.files]
        self._ends = np.cumsum(sizes, dtype=np.int64).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.layout.decode(self.stored(rows))

    def stored(self, rows: slice) -> np.ndarray:
        """The bytes of a slice as they are on disk, (rows, row_bytes)."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are read in slices of step 1")
        size = self.layout.row_bytes
        pieces = [np.empty((0, size), np.uint8)]
        first_row = 0
        for path, end in zip(self.files, self._ends, strict=True):
            low, high = max(start, first_row), min(stop, end)
            if low < high:
                values = np.fromfile(path, np.uint8, (high - low) * size, offset=(low - first_row) * size)
                pieces.append(values.reshape(-1, size))
            first_row = end
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)
