"""Dense search: an encoder makes vectors (encode/), FAISS finds the largest inner products.

How the index is made: indexing/faiss_build.py. How it is searched: faiss_search.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from retrieval_server.encode.encoder import Encoder
from retrieval_server.folder.manifest import DenseSection, SearchSection, require_equal
from retrieval_server.guarantee import Guarantee
from retrieval_server.search.backends import Backend, Hit
from retrieval_server.search.faiss_files import open_index
from retrieval_server.search.faiss_search import GpuSearch, SearchParameters, open_search
from retrieval_server.search.gpu import place
from retrieval_server.search.options import OpenOptions


class DenseBackend(Backend):
    """A FAISS index with the encoder of its vectors."""

    def __init__(
        self,
        path: Path,
        section: DenseSection,
        count: int,
        encoder: Encoder | None,
        options: OpenOptions | None = None,
    ):
        options = options or OpenOptions()
        index = open_index(path, mapped=options.mmap)
        remedy = "Build the index again."
        require_equal(f"{path}: vectors", count, index.ntotal, remedy)
        require_equal(f"{path}: dimension", section.encoder.dimension, index.d, remedy)
        metric = "inner_product" if index.metric_type == faiss.METRIC_INNER_PRODUCT else "other"
        require_equal(f"{path}: metric", section.metric, metric, remedy)
        kept = section.search or SearchSection()
        SearchParameters(
            kept.nprobe if options.nprobe is None else options.nprobe,
            kept.ef_search if options.ef_search is None else options.ef_search,
        ).apply(index)
        self._search = open_search(index, lambda index: place(index, options))
        self._encoder = encoder
        self.guarantee = encoder.probed.guarantee if encoder else Guarantee.BITS
        # On the same cores two batches at once take longer than one after the other, and are smaller.
        self.overlaps = isinstance(self._search, GpuSearch) or (encoder is not None and encoder.on_gpu)

    def prepare(self, queries: Sequence[str]) -> np.ndarray:
        """The queries' vectors, (queries, dimension)."""
        assert self._encoder is not None, "opened without its encoder"
        return self._encoder.encode_queries(queries)

    def find(self, prepared: np.ndarray, topk: int) -> list[list[Hit]]:
        return self._search.find(prepared, topk)

    def close(self) -> None:
        self._search.close()
