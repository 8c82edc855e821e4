"""Builds the FAISS index of encoded passages, measures its recall, and returns its section of the manifest.

A compressed index (presets.py) has a second file with the rows from which its candidates are scored. Once
this file is written, all vectors are read from it, so that training, adding and measuring use the same values
as a server.
"""

from __future__ import annotations

from pathlib import Path

import faiss
from tqdm import tqdm

from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.errors import UserError, ValueTooLargeError
from retrieval_server.folder.manifest import (
    FAISS_INDEX,
    ROWS,
    CorpusSection,
    DenseSection,
    EncoderSection,
    RecallSection,
    SearchSection,
)
from retrieval_server.folder.passages import PassageStore
from retrieval_server.folder.row_layout import RowLayout, RowType
from retrieval_server.indexing.faiss_build import Vectors, make_index, write_faiss_index
from retrieval_server.indexing.faiss_recall import (
    GOOD_RECALL,
    RescoringRows,
    choose_default,
    measure_recall,
    read_queries,
    recall_table,
    recall_warning,
    sample_queries,
)
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.indexing.presets import chosen_preset
from retrieval_server.indexing.work_files import PARTIAL_INDEX, keep_if_unchanged
from retrieval_server.search.vectors.faiss_search import SearchParameters, cell_count, check_nprobe, is_exact
from retrieval_server.search.vectors.stored_rows import StoredRows

_BLOCK = 65_536  # vectors that are stored at once


def check_options(options: BuildOptions, dimension: int) -> None:
    """Raise UserError for a wrong option. Called before the corpus is encoded, which may take hours."""
    index = _empty_index(options, dimension)
    SearchParameters(options.nprobe, options.ef_search).apply(index)
    if options.recall_queries is not None:
        if is_exact(index):
            raise UserError("--recall-queries: the index is exact: nothing to measure. Drop it.")
        read_queries(options.recall_queries)


def check_cells(options: BuildOptions, dimension: int, passages: int) -> None:
    """Raise UserError for more cells than passages, which FAISS would refuse only after the encoding, and for
    a --nprobe above the number of cells."""
    index = _empty_index(options, dimension, passages)
    check_nprobe(options.nprobe, index)
    cells = cell_count(index)
    if not options.preset and cells > passages:
        raise UserError(
            f"--factory {options.factory}: {cells} cells cannot be learned from {passages} passages. Give a "
            "factory string with fewer, or Flat."
        )


def needs_recall(options: BuildOptions, dimension: int) -> bool:
    """Return whether the build measures the recall of its index, for which it needs a loaded encoder."""
    return not is_exact(_empty_index(options, dimension))


def keep_partial_index(
    options: BuildOptions, work: Path, passages: int, section: EncoderSection, corpus: CorpusSection
) -> None:
    """Remove the half-built index of an interrupted build with a preset, unless this build can resume it."""
    preset = chosen_preset(options)
    if preset is not None and preset.rescoring is not None:
        origin = {
            "factory": preset.factory(passages, section.dimension),
            "train_sample": options.train_sample,
            "rows": preset.rescoring.rows,
            "corpus": corpus.sha256,
            "encoder": section.model_dump(),
        }
        keep_if_unchanged(work, PARTIAL_INDEX, origin)


def make_dense(
    options: BuildOptions,
    work: Path,
    store: PassageStore,
    section: EncoderSection,
    vectors: Vectors,
    encoder: Encoder | None,
) -> DenseSection:
    """Write the FAISS index of `vectors`, and the rows of a compressed one, into `work`. Returns its section.

    `section` describes the encoder of the vectors. The recall of an approximate index is measured and
    printed, and determines its default settings; this needs the loaded `encoder`. If the build is interrupted
    meanwhile, the next one reuses the finished index of a preset. Files of an earlier build in `work` must
    belong to the same index (see keep_partial_index). Raises UserError if FAISS cannot build the index or its
    rows cannot hold a value, and OSError.
    """
    path = work / FAISS_INDEX
    preset = chosen_preset(options)
    rescoring = preset.rescoring if preset else None
    factory = preset.factory(len(vectors), vectors.dimension) if preset else options.factory
    dense = DenseSection(
        encoder=section, metric="inner_product", factory=factory, preset=options.preset, rescoring=rescoring
    )
    if rescoring is not None:
        vectors = write_rows(vectors, work / ROWS, rescoring.rows, progress=options.progress)
    checkpoint = None if rescoring is None else work / PARTIAL_INDEX
    write_faiss_index(
        vectors, factory, path, options.train_sample, checkpoint=checkpoint, progress=options.progress
    )
    if not needs_recall(options, vectors.dimension):
        return dense
    assert encoder is not None, "the queries of an approximate index must be encoded"
    scoring = None
    if rescoring is not None:
        stored = StoredRows(work / ROWS, RowLayout(vectors.dimension, rescoring.rows), len(vectors))
        scoring = RescoringRows(stored, rescoring.candidates)
    requested = SearchParameters(options.nprobe, options.ef_search)
    queries, source = _recall_queries(options, store)
    recall = measure_recall(path, vectors, encoder.encode_queries(queries), source, requested, scoring)
    print(recall_table(recall))
    search = _search_settings(requested, recall, preset.target_recall if preset else GOOD_RECALL)
    return dense.model_copy(update={"search": search, "recall": recall})


def _recall_queries(options: BuildOptions, store: PassageStore) -> tuple[list[str], str]:
    """Return the queries with which recall is measured, and their source in words."""
    if options.recall_queries is None:
        return sample_queries(store), "first sentences of passages"
    return read_queries(options.recall_queries), options.recall_queries.name


def _search_settings(requested: SearchParameters, recall: RecallSection, target: float) -> SearchSection:
    """Return the default settings of a search: the `requested` ones, or else the best by recall.

    Prints a warning if even the best recall is below `target`.
    """
    best = requested
    if requested == SearchParameters():
        best = choose_default(recall.rows, target)
        if warning := recall_warning(recall.rows, target):
            print(warning)
    return SearchSection(nprobe=best.nprobe, ef_search=best.ef_search)


def _empty_index(options: BuildOptions, dimension: int, passages: int = 1) -> faiss.Index:
    """Return an empty index of the kind in the options; a preset chooses the number of cells by that of the
    passages. Raises UserError for a wrong factory string."""
    preset = chosen_preset(options)
    return make_index(preset.factory(passages, dimension) if preset else options.factory, dimension)


def write_rows(vectors: Vectors, path: Path, kind: RowType, *, progress: bool = False) -> VectorFiles:
    """Write the vectors to `path` as rows of this type, and return these rows.

    Vectors that are already in this file are returned unchanged. A partial file of an interrupted build is
    continued; it must contain the same vectors. Raises UserError for a value that the type cannot hold.
    """
    layout = RowLayout(vectors.dimension, kind)
    if isinstance(vectors, VectorFiles) and vectors.files == [path]:
        return vectors
    stored = min(path.stat().st_size // layout.row_bytes if path.exists() else 0, len(vectors))
    with (
        path.open("ab") as stream,
        tqdm(
            total=len(vectors), initial=stored, desc="storing", unit=" vectors", disable=not progress
        ) as bar,
    ):
        stream.truncate(stored * layout.row_bytes)
        for first_row in range(stored, len(vectors), _BLOCK):
            rows = slice(first_row, min(first_row + _BLOCK, len(vectors)))
            try:
                stream.write(layout.encode(vectors[rows], first_row))
            except ValueTooLargeError as error:
                raise UserError(f"{error}. Take --preset small or exact.") from None
            except ValueError as error:
                raise UserError(
                    f"{error}. No index can be made: check the encoder or the embeddings."
                ) from None
            bar.update(rows.stop - rows.start)
    return VectorFiles([path], vectors.dimension, kind)
