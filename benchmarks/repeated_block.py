"""An index of a block of random vectors that is repeated, as if each repetition were other passages.

It has the size of an index of as many different vectors, and is searched as fast, but only the block is
trained and added: codes and rows are copied. size_and_speed.py tells why, and what that leaves unmeasured.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.random_vectors import RandomVectors

DIMENSION = 768


def make_index(preset: str, passages: int, block: int, folder: Path, many: int) -> float:
    """The index file and the rows, in `folder`; returns the vectors that were added in a second."""
    import faiss

    from retrieval_server.folder.manifest import FAISS_INDEX, ROWS
    from retrieval_server.folder.row_layout import RowLayout
    from retrieval_server.indexing.faiss_build import make_index as empty
    from retrieval_server.indexing.presets import PRESETS
    from retrieval_server.search.vectors.faiss_search import widen_cell_search

    chosen = PRESETS[preset]
    vectors = RandomVectors(block, DIMENSION)
    layout = RowLayout(DIMENSION, chosen.rescoring.rows)
    index = empty(chosen.in_cells(many, DIMENSION), DIMENSION)
    ivf = faiss.extract_index_ivf(index)
    ivf.quantizer.add(RandomVectors(block + many, DIMENSION)[block:])
    index.train(vectors[:1000])  # the rotation alone, since the cells have their centres
    widen_cell_search(index)
    took, step = 0.0, 65_536
    with (folder / ROWS).open("wb") as stream:
        for first in range(0, block, step):
            drawn = vectors[first : first + step]
            stream.write(layout.encode(drawn))
            began = time.perf_counter()
            index.add(drawn)
            took += time.perf_counter() - began
    repeat_rows(folder / ROWS, passages * layout.row_bytes)
    repeat_codes(index, ivf, block, passages)
    faiss.write_index(index, str(folder / FAISS_INDEX))
    return block / took


def repeat_rows(path: Path, size: int) -> None:
    """Append the file to itself until it has `size` bytes."""
    whole = path.read_bytes()
    with path.open("ab") as stream:
        for first in range(len(whole), size, len(whole)):
            stream.write(whole[: size - first])


def repeat_codes(index, ivf, block: int, passages: int) -> None:
    """Give the cells copies of their codes, for rows `block` to `passages`, whose codes are those of the
    rows before them by a multiple of `block`."""
    import faiss

    lists = ivf.invlists
    for cell in range(ivf.nlist):
        size = lists.list_size(cell)
        if not size:
            continue
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), size).copy()
        codes = faiss.rev_swig_ptr(lists.get_codes(cell), size * lists.code_size).reshape(size, -1).copy()
        more = (ids + np.arange(block, passages + block, block)[:, None]).ravel()
        within = more < passages
        copies = np.tile(codes, (len(more) // size, 1))[within]
        more = more[within]
        lists.add_entries(cell, len(more), faiss.swig_ptr(more), faiss.swig_ptr(copies))
    ivf.ntotal = index.ntotal = passages
