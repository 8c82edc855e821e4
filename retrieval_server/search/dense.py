"""Dense search: encodes queries and finds the passages with the largest inner products, with FAISS.

The index is built by indexing/faiss_build.py and searched by retrieval_server/search/vectors/faiss_search.py.
A compressed index comes with a file of rows from which its candidates are scored. It stays on the CPU, is
mapped unless the options say otherwise, and is read into memory in the background
(retrieval_server/search/vectors/prefetch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import faiss
import numpy as np

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import REBUILD, UserError
from retrieval_server.folder.manifest import ROWS, DenseSection, SearchSection, require_equal
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.search.backends import Backend, Hit
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.threads import encoder_threads, probe_encoder
from retrieval_server.search.vectors.available_memory import available_memory
from retrieval_server.search.vectors.faiss_files import open_index
from retrieval_server.search.vectors.faiss_search import (
    ApproximateSearch,
    GpuSearch,
    Search,
    SearchParameters,
    open_search,
)
from retrieval_server.search.vectors.gpu import place_on_gpus
from retrieval_server.search.vectors.prefetch import Prefetch
from retrieval_server.search.vectors.stored_rows import StoredRows


class DenseBackend(Backend):
    """A FAISS index with the encoder of its vectors.

    `count` is the number of passages. `encoder` is None if another process encodes the queries. Raises
    UserError if the index does not match its manifest or the options do not fit it.
    """

    def __init__(
        self,
        path: Path,
        section: DenseSection,
        count: int,
        encoder: Encoder | None,
        options: OpenOptions | None = None,
    ):
        options = options or OpenOptions()
        rescoring = section.rescoring
        mapped = rescoring is not None if options.mmap is None else options.mmap
        index = open_index(path, mapped=mapped)
        require_equal(f"{path}: vectors", count, index.ntotal, REBUILD)
        require_equal(f"{path}: dimension", section.encoder.dimension, index.d, REBUILD)
        metric = "inner_product" if index.metric_type == faiss.METRIC_INNER_PRODUCT else "other"
        require_equal(f"{path}: metric", section.metric, metric, REBUILD)
        defaults = section.search or SearchSection()
        SearchParameters(
            defaults.nprobe if options.nprobe is None else options.nprobe,
            defaults.ef_search if options.ef_search is None else options.ef_search,
        ).apply(index, compressed=rescoring is not None)
        self._search = _open_search(index, path, section, count, options)
        self._encoder = encoder
        if encoder is not None:
            self.query_dtype = options.dtype
            self._encode_threads = encoder_threads(options)
            self.guarantee = probe_encoder(encoder, self._encode_threads).guarantee
        # On the same cores two batches at once would be smaller and take longer than one after the other.
        self.overlaps = isinstance(self._search, GpuSearch) or (encoder is not None and encoder.on_gpu)
        # This is last, because reading goes on in the background if a later step fails.
        self._prefetch = Prefetch([path], available_memory()) if mapped else None

    def prepare(self, queries: Sequence[str]) -> np.ndarray:
        """Return the vectors of the queries, (queries, dimension)."""
        assert self._encoder is not None, "opened without its encoder"
        self._encode_threads.use_for(len(queries))
        return self._encoder.encode_queries(queries)

    def find(self, prepared: np.ndarray, topk: int) -> list[list[Hit]]:
        return self._search.find(prepared, topk)

    @property
    def paged_in(self) -> float | None:
        return self._prefetch.share if self._prefetch else None

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
        self._search.close()


def _open_search(
    index: faiss.Index, path: Path, section: DenseSection, count: int, options: OpenOptions
) -> Search:
    """Return the search that fits the index. Raises UserError for an option that does not fit it."""
    rescoring = section.rescoring
    if rescoring is None:
        if options.candidates is not None:
            raise UserError(
                f"--candidates {options.candidates}: {path.parent} is not an index of --preset balanced or "
                "small: drop it."
            )
        copy_to_gpus = partial(place_on_gpus, options=options)
        return open_search(index, copy_to_gpus, options.search_threads, options.search_threads_alone)
    if options.gpu == "on":
        raise UserError(f"--gpu on: {path.parent} is compressed: CPU only. Use --gpu auto or --preset exact.")
    layout = RowLayout(section.encoder.dimension, rescoring.rows)
    stored = StoredRows(path.with_name(ROWS), layout, count)
    candidates = options.candidates or rescoring.candidates
    return ApproximateSearch(index, options.search_threads, stored=stored, candidates=candidates)
