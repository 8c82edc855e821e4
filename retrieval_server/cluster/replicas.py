"""What runs in the replicas of Ray: an index's encoder, and one of its shards.

Ray makes an object of the class in each replica's process and calls it with one batch at a time. A process
gets the settings that the server sets for its own; what needs torch or FAISS is imported there only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval_server.determinism import ProbeResult
from retrieval_server.encode.malloc import limit_heaps, trim_heap_regularly
from retrieval_server.folder.manifest import EncoderSection
from retrieval_server.search.options import OpenOptions


class QueryEncoder:
    """A replica of an index's encoder."""

    def __init__(self, section: dict, options: OpenOptions):
        from retrieval_server.encode.cpu_settings import set_mkl_reproducible, set_passive_wait

        set_passive_wait()
        set_mkl_reproducible()
        limit_heaps()
        trim_heap_regularly()
        from retrieval_server.encode.encoder import Encoder
        from retrieval_server.search.threads import encoder_threads, probe_encoder

        encoder = EncoderSection.model_validate(section)
        self._encoder = Encoder.open(
            encoder, options.encoder, options.device, options.dtype, options.openvino
        )
        self._threads = encoder_threads(options)
        self._probed = probe_encoder(self._encoder, self._threads)

    def call(self, queries: list[str]) -> tuple[Any, ProbeResult]:
        """The queries' vectors, (queries, dimension), and the result of this process's probe."""
        self._threads.use_for(len(queries))
        return self._encoder.encode_queries(queries), self._probed


class Shard:
    """A replica of one shard: an index folder without its encoder. Answers with documents, not rows."""

    def __init__(self, folder: str, verify: bool | None, options: OpenOptions):
        from retrieval_server.search.index_source import IndexSource

        limit_heaps()
        trim_heap_regularly()
        self._index = IndexSource.open(Path(folder), verify=verify, options=options, encodes=False)
        self._dense = self._index.manifest.dense is not None

    def call(self, prepared: Any, topks: list[int]) -> list[list[tuple[str, str, str | None, float]]]:
        """The hits of each query (a vector, or a text for BM25) as id, contents, url and unrounded score."""
        if not self._dense:
            prepared = self._index.prepare(prepared)
        return [
            [(hit.passage.id, hit.passage.contents, hit.passage.url, hit.score) for hit in hits]
            for hits in self._index.find_unrounded(prepared, topks)
        ]
