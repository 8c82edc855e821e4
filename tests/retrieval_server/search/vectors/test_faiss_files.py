"""Which kinds of index FAISS maps from their file, and which it reads into memory all the same."""

from __future__ import annotations

import sys

import faiss
import numpy as np
import pytest

from retrieval_server.indexing.faiss_build import make_index

from ...running import run_python

DIMENSION, ROWS = 64, 60_000  # files of a megabyte and more, whatever else FAISS allocates
MAPPED = (
    "Flat",
    "SQ8",
    "HNSW4",
    "IVF4,Flat",
    "IVF4,SQ8",
    "IVF4,RaBitQ",
    f"RR{DIMENSION},IVF4,RaBitQ",
    f"RR{DIMENSION},IVF4_HNSW4,RaBitQ2",
)
READ = ("IVF4,PQ32x4fs", "IVF4,RaBitQfs")
#: Prints the bytes of the process's own memory that opening the file mapped has cost.
_OPEN = """
import sys
from pathlib import Path
from retrieval_server.search.vectors.faiss_files import open_index
import faiss
def own():
    return 1024 * int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])
before = own()
index = open_index(Path(sys.argv[1]), mapped=True)
print(own() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
@pytest.mark.parametrize("factory", (*MAPPED, *READ))
def test_a_mapped_index_costs_memory_only_where_faiss_cannot_map_it(tmp_path, factory):
    """The guide's table; a FAISS that maps more makes this fail, and the table can grow."""
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    index = make_index(factory, DIMENSION)
    index.train(vectors[:1000])
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "index"))
    share = int(run_python(_OPEN, tmp_path / "index")) / (tmp_path / "index").stat().st_size
    assert share < 0.5 if factory in MAPPED else share > 0.8
