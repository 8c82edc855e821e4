"""The presets of an index, which determine what it keeps in memory and on disk.

- `exact` keeps every vector in memory in 32 bits and compares all of them with the query.
- `balanced` keeps 2 bits per dimension in memory (RaBitQ in cells), and scores 400 candidates from 16-bit
  rows on disk.
- `small` keeps 1 bit per dimension in memory, and scores 400 candidates from 8-bit rows on disk.

RaBitQ (Gao and Long, SIGMOD 2024; with several bits Gao et al., SIGMOD 2025), as FAISS implements it,
quantises the difference of a vector from the centre of its cell after a random rotation. The fast-scan
variant is not used, because FAISS cannot map its files (1.15). The number of cells grows with the square root
of the number of passages, up to the number that two cores can train. From 2,048 cells on, a graph over the
cells finds the nearest ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from retrieval_server.folder.manifest import RescoringSection
from retrieval_server.folder.row_layout import RowType
from retrieval_server.indexing.faiss_build import TRAIN_PER_CELL
from retrieval_server.indexing.options import DenseOptions, PresetName

MAX_CELLS = 16_384
#: The number of cells from which on finding the nearest in a graph is faster than comparing all.
GRAPH_FROM = 2048


@dataclass(frozen=True)
class Preset:
    """The kind of index that a name stands for."""

    name: PresetName
    #: Bits per dimension in memory; None for an exact index.
    bits: int | None = None
    #: Only for a compressed index.
    rescoring: RescoringSection | None = None
    #: The recall@10 that the default `nprobe` of a new index should reach (faiss_recall.py).
    target_recall: float = 1.0

    def factory(self, passages: int, dimension: int) -> str:
        """Return FAISS's factory string for this number of passages."""
        return "Flat" if self.bits is None else self.factory_with_cells(cells_for(passages), dimension)

    def factory_with_cells(self, cells: int, dimension: int) -> str:
        """Return the factory string of a compressed index with this number of cells."""
        graph = "_HNSW32" if cells >= GRAPH_FROM else ""
        bits = "" if self.bits == 1 else str(self.bits)
        return f"RR{dimension},IVF{cells}{graph},RaBitQ{bits}"


PRESETS: dict[PresetName, Preset] = {
    preset.name: preset
    for preset in (
        Preset("exact"),
        Preset("balanced", 2, RescoringSection(rows="float16", candidates=400), target_recall=0.995),
        Preset("small", 1, RescoringSection(rows="int8", candidates=400), target_recall=0.99),
    )
}


def cells_for(passages: int) -> int:
    """Return the number of cells, a power of two that is at most four times the square root of `passages`.

    There are also enough passages to train each cell, and at least one cell.
    """
    cells = min(4 * math.sqrt(passages), passages / TRAIN_PER_CELL, MAX_CELLS)
    return 2 ** math.floor(math.log2(cells)) if cells >= 1 else 1


def chosen_preset(options: DenseOptions) -> Preset | None:
    """Return the preset that the options name, or None if they give a factory string."""
    return PRESETS[options.preset] if options.preset else None


def row_type(options: DenseOptions) -> RowType:
    """Return the type in which passages are encoded to disk: that of the preset's rows, or float32."""
    preset = chosen_preset(options)
    return preset.rescoring.rows if preset and preset.rescoring else "float32"
