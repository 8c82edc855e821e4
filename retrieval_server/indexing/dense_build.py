"""From encoded passages to the dense section of an index: the FAISS file, and its entry in the manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.encoding import Vectors
from retrieval_server.errors import BuildError
from retrieval_server.folder.manifest import FAISS_INDEX, DenseSection, EncoderSection, SearchSection
from retrieval_server.folder.passages import PassageStore
from retrieval_server.indexing.faiss_build import make_index, write_faiss_index
from retrieval_server.indexing.faiss_recall import (
    choose_default,
    measure_recall,
    read_queries,
    sample_queries,
    table,
)
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.faiss_search import SearchParameters, is_exact


def check_options(options: BuildOptions, dimension: int) -> None:
    """Raise BuildError for a wrong option before the corpus is encoded, not hours later."""
    index = make_index(options.factory, dimension)
    SearchParameters(options.nprobe, options.ef_search).apply(index)
    if options.recall_queries is not None:
        if is_exact(index):
            raise BuildError("--recall-queries: --factory Flat is exact: nothing to measure. Drop it.")
        read_queries(options.recall_queries)


def make_dense(
    options: BuildOptions,
    work: Path,
    store: PassageStore,
    encoder: EncoderSection,
    vectors: Vectors,
    open_encoder: Callable[[], Encoder],
) -> DenseSection:
    """Write the FAISS index of ``vectors`` into ``work``.

    The recall of an approximate index is measured and printed, and its default settings are chosen from it;
    ``open_encoder`` is called only for that.
    """
    path = work / FAISS_INDEX
    section = DenseSection(encoder=encoder, metric="inner_product", factory=options.factory)
    write_faiss_index(vectors, options.factory, path, options.train_sample)
    if is_exact(make_index(options.factory, vectors.dimension)):
        return section
    if options.recall_queries is None:
        queries, source = sample_queries(store), "first sentences of passages"
    else:
        queries, source = read_queries(options.recall_queries), options.recall_queries.name
    asked = SearchParameters(options.nprobe, options.ef_search)
    found = measure_recall(path, vectors, open_encoder().encode_queries(queries), source, asked)
    print(table(found))
    chosen = asked if asked != SearchParameters() else choose_default(found.rows)
    search = SearchSection(nprobe=chosen.nprobe, ef_search=chosen.ef_search)
    return section.model_copy(update={"search": search, "recall": found})
