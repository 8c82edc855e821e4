"""Passages to vectors on disk, and back from disk, block by block.

Passages are encoded in blocks and appended to a raw float32 file, so memory does not grow with the corpus and
a run that was killed resumes after its last whole block. Blocks have fixed borders: a resumed run encodes the
same batches as an undisturbed one, and ends with the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval_server.encode.encoder import Encoder
from retrieval_server.folder.passages import PassageStore

BLOCK = 1024  # passages encoded and written at once


def encode_rows(
    store: PassageStore,
    encoder: Encoder,
    path: Path,
    *,
    start: int = 0,
    stop: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
    label: str = "encoding",
) -> None:
    """Append the vectors of rows ``start`` to ``stop`` (excluded; None: all) to the raw file ``path``.

    Resumes after the file's last whole block. Part of a block, as a kill leaves it, is encoded again.
    """
    stop = len(store) if stop is None else stop
    row_bytes = encoder.section.dimension * 4
    there = path.stat().st_size // row_bytes if path.exists() else 0
    done = min(there, stop - start) // BLOCK * BLOCK
    texts = store.iter_contents(start + done, stop)
    with (
        path.open("ab") as stream,
        tqdm(total=stop - start, initial=done, desc=label, unit=" passages", disable=not progress) as bar,
    ):
        stream.truncate(done * row_bytes)
        while block := list(islice(texts, BLOCK)):
            stream.write(encoder.encode_passages(block, batch_size).tobytes())
            stream.flush()
            bar.update(len(block))
        os.fsync(stream.fileno())


class Vectors:
    """The rows of raw float32 files, one file after another: ``vectors[a:b]`` is a (b - a, dimension) array.

    A slice is read from disk each time and not kept.
    """

    def __init__(self, files: Sequence[Path], dimension: int):
        self.dimension = dimension
        self._files = list(files)
        sizes = [path.stat().st_size // (4 * dimension) for path in self._files]
        self._ends = np.cumsum(sizes, dtype=np.int64).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("vectors are read in slices of step 1")
        pieces = [np.empty((0, self.dimension), dtype=np.float32)]
        first = 0
        for path, end in zip(self._files, self._ends, strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                values = np.fromfile(
                    path, np.float32, (high - low) * self.dimension, offset=(low - first) * self.dimension * 4
                )
                pieces.append(values.reshape(-1, self.dimension))
            first = end
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)
