"""The presets of an index: what each keeps in memory and on disk.

- `exact`: every vector in 32 bits in memory, every one compared with the query;
- `balanced`: 2 bits a dimension in memory (RaBitQ in cells), 400 candidates, scored from 16-bit rows on
  disk;
- `small`: 1 bit a dimension in memory, 400 candidates, scored from 8-bit rows on disk.

RaBitQ (Gao and Long, SIGMOD 2024; with several bits Gao et al., SIGMOD 2025) quantises the difference of a
vector from the centre of its cell, after a random rotation, in FAISS's implementation. Its plain form is used
and not the fast-scan one, whose files FAISS cannot map (1.15). The number of cells grows with the root of the
corpus, but not beyond what two cores can train. From 2,048 cells on a graph over them finds the nearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from retrieval_server.folder.manifest import RescoringSection
from retrieval_server.folder.row_layout import RowType
from retrieval_server.indexing.faiss_build import TRAIN_PER_CELL
from retrieval_server.indexing.options import DenseOptions, PresetName

MAX_CELLS = 16_384
#: From this many cells on it is faster to find the nearest in a graph than to compare all.
GRAPH_FROM = 2048


@dataclass(frozen=True)
class Preset:
    """The index that a name stands for.

    `bits` a dimension in memory; None: an exact index. `good` is the share of exact search's first ten
    hits that the default `nprobe` of a new index has to find, see faiss_recall.py.
    """

    name: PresetName
    bits: int | None = None
    rescoring: RescoringSection | None = None
    good: float = 1.0

    def factory(self, passages: int, dimension: int) -> str:
        """FAISS's factory string for so many passages."""
        return "Flat" if self.bits is None else self.in_cells(cells_for(passages), dimension)

    def in_cells(self, cells: int, dimension: int) -> str:
        """The factory string of a compressed index with so many cells."""
        graph = "_HNSW32" if cells >= GRAPH_FROM else ""
        bits = "" if self.bits == 1 else str(self.bits)
        return f"RR{dimension},IVF{cells}{graph},RaBitQ{bits}"


PRESETS: dict[PresetName, Preset] = {
    preset.name: preset
    for preset in (
        Preset("exact"),
        Preset("balanced", 2, RescoringSection(rows="float16", candidates=400), good=0.995),
        Preset("small", 1, RescoringSection(rows="int8", candidates=400), good=0.99),
    )
}


def cells_for(passages: int) -> int:
    """The power of two at or below four times the root, with enough passages to train each; at least 1."""
    cells = min(4 * math.sqrt(passages), passages / TRAIN_PER_CELL, MAX_CELLS)
    return 2 ** math.floor(math.log2(cells)) if cells >= 1 else 1


def chosen_preset(options: DenseOptions) -> Preset | None:
    """The preset of the options, if they name one."""
    return PRESETS[options.preset] if options.preset else None


def row_type(options: DenseOptions) -> RowType:
    """The type in which passages are encoded to disk: that of the preset's rows, else float32."""
    preset = chosen_preset(options)
    return preset.rescoring.rows if preset and preset.rescoring else "float32"
