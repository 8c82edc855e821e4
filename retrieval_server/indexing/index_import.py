"""Imports a FAISS file or embeddings that were built elsewhere, with their corpus, as an index folder.

Search-R1 and FlashRAG publish indexes that are as large as a machine's memory and took days to encode. So a
FAISS file is hard-linked into the folder, or copied if the file system cannot link, and it is only mapped
here. Embeddings are read in blocks. As in every build, all work is done in `OUT.building`, which is renamed
at the end.

Such files do not name their corpus and their encoder, and a wrong one would return nonsense without any
error. So several properties are checked: there are as many rows as passages, the dimension is the encoder's,
the metric is the inner product, and the ids are 0 to n - 1, as in the published corpora. In addition some
passages are encoded again and compared with the vectors in their rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import faiss
import numpy as np
from tqdm import tqdm

from retrieval_server.encode.encoder import Encoder
from retrieval_server.errors import UserError
from retrieval_server.folder.corpus import CorpusReader, write_passages
from retrieval_server.folder.hard_links import link_or_copy
from retrieval_server.folder.manifest import (
    FAISS_INDEX,
    PASSAGES,
    DenseSection,
    EncoderSection,
    Manifest,
    SearchSection,
)
from retrieval_server.folder.passages import Passage, PassageStore
from retrieval_server.folder.publication import check_target, work_folder
from retrieval_server.indexing.builder import open_encoder, print_resources
from retrieval_server.indexing.dense_build import make_dense
from retrieval_server.indexing.embedding_files import Embeddings
from retrieval_server.indexing.faiss_build import faiss_message
from retrieval_server.indexing.index_manifest import finish_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.vectors.faiss_files import INNER_PRODUCT, open_index, read_header, write_exact
from retrieval_server.search.vectors.faiss_search import SearchParameters, check_nprobe, is_exact

log = logging.getLogger(__name__)
_BLOCK_ROWS = 65_536
_PROBE_ROWS = 24  # passages that are encoded again
_SEED = 0
#: The share of the probed passages that must be nearest to the vector in their own row.
_MIN_MATCHING_SHARE = 0.9
#: The smallest median cosine for vectors that are not quantised. 16 bits reduce it by 1e-3; another limit of
#: tokens reduces it more, but only for a few passages.
_MIN_COSINE = 0.98


def import_index(
    options: BuildOptions,
    *,
    faiss_file: Path | None = None,
    embeddings: Sequence[Path] = (),
    trust: bool = False,
) -> Manifest:
    """Build `options.out` from a FAISS file or embeddings, whose row i is passage i of `options.corpus`.

    `trust` accepts ids that are not row numbers and, with a warning, vectors that differ from the encoder's.
    Raises UserError and leaves `out` unchanged if the import fails.
    """
    check_target(options.out, overwrite=options.overwrite)
    encoder_options = options
    if faiss_file is not None:
        check_kind(faiss_file)  # before the encoder is loaded, which takes a while
        # These options are for the imported file; `open_encoder` would check them against --factory.
        encoder_options = options.model_copy(update={"nprobe": None, "ef_search": None})
    encoder = open_encoder(encoder_options)
    # --dtype only affects the comparison here, not the imported vectors.
    encoder.section = encoder.section.model_copy(update={"passage_dtype": None})
    dimension = encoder.section.dimension
    vectors = None if faiss_file is not None else Embeddings(embeddings, dimension)
    if faiss_file is not None and (width := read_header(faiss_file).dimension) != dimension:
        raise UserError(
            f"--faiss {faiss_file}: {width} dimensions, the encoder's have {dimension}. Give its encoder."
        )
    with work_folder(options.out) as work:
        reader_type = CorpusReader if trust else _NumberedCorpus
        reader = reader_type(options.corpus, progress=options.progress)
        corpus, count = write_passages(reader, work / PASSAGES)
        store = PassageStore(work / PASSAGES)
        if vectors is None:
            assert faiss_file is not None  # the options name a FAISS file or embeddings
            section = _add_index(options, faiss_file, encoder, store, work / FAISS_INDEX, trust=trust)
        else:
            vectors.choose_dtype(count)
            _compare_with_encoder(encoder, store, vectors.take, exact=True, trust=trust)
            print_resources(options, store, dimension, encoder, encodes=False)
            section = _build_index(options, vectors, encoder, store, work)
        return finish_index(options, work, corpus, count, {"dense": section})


class _NumberedCorpus(CorpusReader):
    """A corpus whose ids must be its row numbers."""

    def __iter__(self) -> Iterator[tuple[int, Passage]]:
        for row, (position, passage) in enumerate(super().__iter__()):
            if passage.id != str(row):
                raise UserError(
                    f"{self.locate(position)}: id {passage.id!r} in row {row}, but ids must be row numbers. "
                    "If the corpus is in the order of the vectors, add --trust."
                )
            yield position, passage


def check_kind(path: Path) -> None:
    """Raise UserError if the header of a FAISS file shows that it cannot be imported."""
    header = read_header(path)
    if header.metric != INNER_PRODUCT:
        raise UserError(f"--faiss {path}: made for another metric than inner product. Import its embeddings.")
    if header.kind in ("IxMp", "IxM2"):
        raise UserError(f"--faiss {path}: an IDMap. Rows are the ids here: write the index inside it.")


def _add_index(
    options: BuildOptions, source: Path, encoder: Encoder, store: PassageStore, target: Path, *, trust: bool
) -> DenseSection:
    """Check a FAISS file against corpus and encoder, and link or copy it to `target`. Raises UserError."""
    index = open_index(source, mapped=True)
    if index.ntotal != len(store):
        raise UserError(f"--faiss {source}: {index.ntotal} rows for {len(store)} passages. Give its corpus.")
    parameters = SearchParameters(options.nprobe, options.ef_search)
    parameters.apply(index)
    check_nprobe(options.nprobe, index)
    ivf = faiss.try_extract_index_ivf(index)
    try:
        if ivf is not None:
            ivf.make_direct_map(True)
        # The vectors of a quantised index are only similar to the encoded ones.
        flat_kinds = (faiss.IndexHNSWFlat, faiss.IndexIVFFlat)
        keeps_vectors = is_exact(index) or type(faiss.downcast_index(index)) in flat_kinds
        _compare_with_encoder(encoder, store, index.reconstruct_batch, exact=keeps_vectors, trust=trust)
    except RuntimeError as error:
        raise UserError(
            f"--faiss {source}: FAISS returns no vectors ({faiss_message(error)}). Import its embeddings."
        ) from None
    factory = _factory_string(index)
    del index, ivf
    link_or_copy(source.resolve(), target, progress=options.progress)
    search = SearchSection(nprobe=options.nprobe, ef_search=options.ef_search)
    return DenseSection(
        encoder=encoder.section,
        metric="inner_product",
        factory=factory,
        search=None if parameters == SearchParameters() else search,
    )


def _build_index(
    options: BuildOptions, vectors: Embeddings, encoder: Encoder, store: PassageStore, work: Path
) -> DenseSection:
    """Build the index of embeddings: an exact index in blocks on disk, and any other with FAISS in memory."""
    if options.factory != "Flat" or options.preset not in (None, "exact"):
        return make_dense(options, work, store, encoder.section, vectors, encoder)

    def blocks() -> Iterator[np.ndarray]:
        with tqdm(total=len(vectors), desc="writing", unit=" vectors", disable=not options.progress) as bar:
            for first_row in range(0, len(vectors), _BLOCK_ROWS):
                block = vectors[first_row : first_row + _BLOCK_ROWS]
                yield block
                bar.update(len(block))

    write_exact(blocks(), len(vectors), vectors.dimension, work / FAISS_INDEX)
    return DenseSection(
        encoder=encoder.section, metric="inner_product", factory="Flat", preset=options.preset
    )


def _compare_with_encoder(
    encoder: Encoder,
    store: PassageStore,
    stored: Callable[[np.ndarray], np.ndarray],
    *,
    exact: bool,
    trust: bool,
) -> None:
    """Encode some passages again and compare the results with the vectors of their rows, `stored(rows)`.

    `exact` says that the stored vectors are not quantised. If the vectors differ, raises UserError, or logs a
    warning if `trust` is true.
    """
    rows = np.random.default_rng(_SEED).permutation(len(store))[:_PROBE_ROWS].astype(np.int64)
    fresh = encoder.encode_passages([store[row].contents for row in rows.tolist()])
    imported = stored(rows)
    if fault := _mismatch(encoder.section, fresh, imported, exact=exact):
        if not trust:
            raise UserError(f"{fault}. Correct that, or accept them as they are with --trust.")
        log.warning("%s; accepted all the same (--trust)", fault)


def _mismatch(section: EncoderSection, fresh: np.ndarray, imported: np.ndarray, *, exact: bool) -> str | None:
    """Describe how imported vectors differ from the encoder's, (rows, dimension) each; None if they match."""
    lengths = np.linalg.norm(imported, axis=1)
    fresh = fresh / np.linalg.norm(fresh, axis=1, keepdims=True)
    cosines = fresh @ (imported / np.maximum(lengths, 1e-9)[:, None]).T
    row_cosines = np.diagonal(cosines)
    rows = len(fresh)
    # The margin is the error of 16 bits, so that the row of an equal or nearly equal passage does not count.
    matching = int((row_cosines >= cosines.max(axis=1) - 1e-3).sum())
    cosine = float(np.median(row_cosines))
    length = float(np.median(lengths))
    if matching < _MIN_MATCHING_SHARE * rows:
        return (
            f"of {rows} passages encoded again, {rows - matching} are nearer to the vector of "
            f"another row: not the vectors of {section.name} for this corpus in this order"
        )
    if exact and cosine < _MIN_COSINE:
        return (
            f"{rows} passages encoded again have a cosine of {cosine:.3f} with their vectors: another "
            f"encoder than {section.name}, another pooling ({section.pooling}) or prefix "
            f"({section.passage_prefix!r})"
        )
    if exact and section.normalize and abs(length - 1) > 0.01:
        return (
            f"the vectors have lengths of about {length:.3g}, and {section.name} "
            "gives vectors of length 1: inner products would not be cosines"
        )
    return None


def _factory_string(index: faiss.Index) -> str:
    """Return the factory string of a common kind of index, and the name of FAISS's class for other kinds."""
    if is_exact(index):
        return "Flat"
    index = faiss.downcast_index(index)
    if type(index) is faiss.IndexHNSWFlat:
        return f"HNSW{index.hnsw.nb_neighbors(1)},Flat"
    if type(index) is faiss.IndexIVFFlat:
        return f"IVF{index.nlist},Flat"
    return type(index).__name__.removeprefix("Index")
