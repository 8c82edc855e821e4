"""The classes that run in the replicas of Ray: the encoder of an index, and one of its shards.

Ray creates an object of the class in the process of each replica and calls it with one batch at a time. The
process gets the same memory settings as the server, and that of an encoder also the settings for torch.
Modules that need torch or FAISS are imported in the replicas only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval_server.determinism import ProbeResult
from retrieval_server.encode.malloc import limit_heaps, trim_heap_regularly
from retrieval_server.folder.manifest import EncoderSection
from retrieval_server.search.options import OpenOptions


class QueryEncoder:
    """A replica of an index's encoder. `section` is its EncoderSection as plain data, to be sent."""

    def __init__(self, section: dict[str, Any], options: OpenOptions):
        from retrieval_server.encode.cpu_settings import set_mkl_reproducible, set_passive_wait

        set_passive_wait()
        set_mkl_reproducible()
        limit_heaps()
        trim_heap_regularly()
        # Only now, since these import torch, which reads the settings above.
        from retrieval_server.encode.encoder import Encoder
        from retrieval_server.search.threads import encoder_threads, probe_encoder

        encoder = EncoderSection.model_validate(section)
        self._encoder = Encoder.open(
            encoder, options.encoder, options.device, options.dtype, options.openvino
        )
        self._threads = encoder_threads(options)
        self._probed = probe_encoder(self._encoder, self._threads)

    def call(self, queries: list[str]) -> tuple[Any, ProbeResult]:
        """Return the vectors of the queries, (queries, dimension), and the result of this process's probe."""
        self._threads.use_for(len(queries))
        return self._encoder.encode_queries(queries), self._probed


class Shard:
    """A replica of one shard, that is, of an index folder without its encoder. It returns documents.

    `verify` is that of `check_files`: whether the files are compared with their hashes.
    """

    def __init__(self, folder: str, verify: bool | None, options: OpenOptions):
        from retrieval_server.search.index_source import IndexSource

        limit_heaps()
        trim_heap_regularly()
        self._index = IndexSource.open(Path(folder), verify=verify, options=options, encodes=False)
        self._dense = self._index.manifest.dense is not None

    def call(self, prepared: Any, topks: list[int]) -> list[list[tuple[str, str, str | None, float]]]:
        """Return at most `topks[i]` hits for query `i`, each as id, contents, url and unrounded score.

        `prepared` are the vectors of the queries, (queries, dimension), or their texts for BM25.
        """
        if not self._dense:
            prepared = self._index.prepare(prepared)
        return [
            [(hit.passage.id, hit.passage.contents, hit.passage.url, hit.score) for hit in hits]
            for hits in self._index.find_unrounded(prepared, topks)
        ]
