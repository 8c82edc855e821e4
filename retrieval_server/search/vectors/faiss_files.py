"""Reads, opens and writes FAISS index files.

The first 37 bytes of a file contain its kind, rows, dimension and metric. They are checked before FAISS reads
the file, because FAISS does not check any length in it. So a file that is not an index is reported at once,
instead of after minutes or as a lack of memory, and so is a truncated download of an index that stores its
vectors in 32 bits. The size of other kinds does not follow from the header.

A mapped index stays on disk: FAISS works on its pages, of which the system keeps as many as memory allows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval_server.errors import REBUILD, UserError, refuse_special_file

if TYPE_CHECKING:
    import faiss

INNER_PRODUCT = 0  # faiss.METRIC_INNER_PRODUCT
#: Kind, dimension, rows, two unused numbers, whether it is trained, metric.
_HEADER = struct.Struct("<4siqqq?i")
_UNUSED_VALUE = 1 << 20  # the value that FAISS writes for the two unused numbers
_COUNT = struct.Struct("<Q")  # the number of floats that follow in an exact index
_EXACT = ("IxFI", "IxF2", "IxFl")
_UNCOMPRESSED = (*_EXACT, "IHNf", "IwFl")  # kinds that store every vector in 32 bits


@dataclass(frozen=True)
class FaissHeader:
    """The header of an index file."""

    #: FAISS's code of four letters.
    kind: str
    dimension: int
    rows: int
    trained: bool
    #: One of FAISS's numbers for metrics, such as INNER_PRODUCT.
    metric: int


def read_header(path: Path) -> FaissHeader:
    """Return the file's header.

    Raises UserError if the file cannot be read, is not a FAISS index of float vectors, or is shorter than the
    vectors that it stores in 32 bits.
    """
    try:
        refuse_special_file(path)
        with path.open("rb") as stream:
            head = stream.read(_HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}. Give the index file of FAISS.") from None
    kind = head[:4].decode("ascii", "replace")
    if len(head) < _HEADER.size or kind[0] != "I" or kind.startswith("IB"):
        raise UserError(f"{path}: not a readable FAISS index of float vectors. Fetch it again.")
    _, dimension, rows, _, _, trained, metric = _HEADER.unpack(head)
    if dimension < 1 or rows < 0:
        raise UserError(f"{path}: not a readable FAISS index: {rows} x {dimension} values. Fetch it again.")
    needed_bytes = 4 * dimension * rows
    if kind in _EXACT and metric in (0, 1):  # with other metrics the header also has their argument
        needed_bytes += _HEADER.size + _COUNT.size
    if kind in _UNCOMPRESSED and size < needed_bytes:
        raise UserError(
            f"{path}: not a readable FAISS index: {rows} rows of {dimension} dimensions take "
            f"{needed_bytes} bytes, and it has {size}. It is cut off: fetch it again, or, if it comes in "
            "parts, join them all."
        )
    return FaissHeader(kind, dimension, rows, trained, metric)


def open_index(path: Path, *, mapped: bool = False) -> faiss.Index:
    """Open an index, in memory or `mapped`. FAISS before 1.11 cannot map and reads it into memory.

    Raises UserError if it cannot be read or does not fit into memory.
    """
    import faiss

    read_header(path)
    try:
        return faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if mapped else 0)
    except MemoryError:
        remedy = "Map it from disk with --mmap, or use a machine with more memory."
        raise UserError(f"{path}: too large for this machine's memory. {remedy}") from None
    except RuntimeError as error:
        raise UserError(f"{path}: not a readable FAISS index. {REBUILD}") from error


def write_exact(blocks: Iterable[np.ndarray], rows: int, dimension: int, path: Path) -> None:
    """Write an exact inner-product index of float32 blocks, (rows, dimension) each and `rows` in total.

    The file has the same bytes as one of `faiss.write_index`, but only one block is in memory at a time.
    """
    kind = b"IxFI"
    with path.open("wb") as stream:
        stream.write(_HEADER.pack(kind, dimension, rows, _UNUSED_VALUE, _UNUSED_VALUE, True, INNER_PRODUCT))
        stream.write(_COUNT.pack(rows * dimension))
        for block in blocks:
            stream.write(np.ascontiguousarray(block, "<f4").tobytes())
