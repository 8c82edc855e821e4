"""Builds an index of a block of random vectors, repeated until the index has a given number of passages.

The index has the size of one with as many different vectors, and search takes as long, but only the block is
added; codes and rows are copied. size_and_speed.py explains why, and what this does not measure.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.random_vectors import RandomVectors

if TYPE_CHECKING:
    import faiss

DIMENSION = 768
#: Number of vectors that are added at once.
_ADDED_AT_ONCE = 65_536


def make_index(preset: str, passages: int, block: int, folder: Path, n_cells: int) -> float:
    """Write the index file and the rows into `folder`; returns the number of vectors added per second.

    `block` is the number of different vectors.
    """
    import faiss

    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
    from retrieval_server.folder.row_layout import RowLayout
    from retrieval_server.indexing.faiss_build import make_index as make_empty_index
    from retrieval_server.indexing.presets import PRESETS
    from retrieval_server.search.vectors.faiss_search import widen_cell_search

    chosen = PRESETS[preset]
    vectors = RandomVectors(block, DIMENSION)
    layout = RowLayout(DIMENSION, chosen.rescoring.rows)
    index = make_empty_index(chosen.factory_with_cells(n_cells, DIMENSION), DIMENSION)
    ivf = faiss.extract_index_ivf(index)
    ivf.quantizer.add(RandomVectors(block + n_cells, DIMENSION)[block:])
    index.train(vectors[:1000])  # trains only the rotation, since the cells already have their centres
    widen_cell_search(index)
    seconds = 0.0
    with (folder / ROWS).open("wb") as stream:
        for first in range(0, block, _ADDED_AT_ONCE):
            drawn = vectors[first : first + _ADDED_AT_ONCE]
            stream.write(layout.encode(drawn))
            started = time.perf_counter()
            index.add(drawn)
            seconds += time.perf_counter() - started
    repeat_rows(folder / ROWS, passages * layout.row_bytes)
    repeat_codes(index, ivf, block, passages)
    faiss.write_index(index, str(folder / FAISS_INDEX))
    return block / seconds


def repeat_rows(path: Path, size: int) -> None:
    """Append the contents of a file to it until it has `size` bytes."""
    block = path.read_bytes()
    with path.open("ab") as stream:
        for first in range(len(block), size, len(block)):
            stream.write(block[: size - first])


def repeat_codes(index: faiss.Index, ivf: faiss.IndexIVF, block: int, passages: int) -> None:
    """Add copies of the cells' codes for the rows from `block` to `passages`.

    `ivf` is the part of `index` that has the cells. A row has the code of the row in the block whose number
    differs by a multiple of `block`.
    """
    import faiss

    lists = ivf.invlists
    for cell in range(ivf.nlist):
        size = lists.list_size(cell)
        if not size:
            continue
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), size).copy()
        codes = faiss.rev_swig_ptr(lists.get_codes(cell), size * lists.code_size).reshape(size, -1).copy()
        new_ids = (ids + np.arange(block, passages + block, block)[:, None]).ravel()
        within = new_ids < passages
        copies = np.tile(codes, (len(new_ids) // size, 1))[within]
        new_ids = new_ids[within]
        lists.add_entries(cell, len(new_ids), faiss.swig_ptr(new_ids), faiss.swig_ptr(copies))
    ivf.ntotal = index.ntotal = passages
