"""Encodes passages into vector files, block by block, and reads them back.

Passages are encoded in blocks and appended to a file of rows (folder/row_layout.py). So memory does not grow
with the corpus, and an interrupted run resumes after its last complete block. The borders of the blocks are
fixed: a resumed run encodes the same batches as an uninterrupted one and writes the same bytes.
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
    """Encode the passages from `start` to `stop` (excluded; None: to the end) into the file `path`.

    The vectors are stored as rows of the type `kind`. If the file exists, encoding resumes after its last
    complete block, and a partial block is encoded again. Raises UserError, which names the passage, for a
    vector that cannot be stored.
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
    """Return the bytes of the vectors of rows from `first_row` on. Raises UserError for a wrong value."""
    try:
        return layout.encode(vectors, first_row)
    except ValueTooLargeError as error:
        raise UserError(f"{encoder}: encoding the passages: {error}. Take --preset small or exact.") from None
    except ValueError as error:
        raise UserError(f"{encoder}: encoding the passages: {error}. Encode with --dtype float32.") from None


class VectorFiles:
    """The rows of several files as one sequence: `vectors[a:b]` is a float32 array (b - a, dimension).

    All files have rows of the type `kind`. A slice is read from disk on each access and is not kept.
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
        """Return the bytes of a slice as they are on disk, (rows, row_bytes)."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are read in slices of step 1")
        size = self.layout.row_bytes
        arrays = [np.empty((0, size), np.uint8)]
        first_row = 0
        for path, end in zip(self.files, self._ends, strict=True):
            low, high = max(start, first_row), min(stop, end)
            if low < high:
                values = np.fromfile(path, np.uint8, (high - low) * size, offset=(low - first_row) * size)
                arrays.append(values.reshape(-1, size))
            first_row = end
        return arrays[1] if len(arrays) == 2 else np.concatenate(arrays)
