"""Builds index folders from a corpus, from vectors that were encoded in parts, or, hybrid ones, from indexes.

All work is done in `OUT.building` beside the target. The manifest is written last, and then the folder is
renamed, so that `OUT` either is a finished index or does not exist. A build that was killed leaves
`OUT.building`. The same command then resumes with the vectors in it if corpus and encoder still match
`progress.json`, and otherwise starts over. With a preset the vectors are encoded directly into the rows that
the index keeps, and a half-built FAISS index is resumed too.

Modules that need FAISS, torch or bm25s are imported in the functions that use them, so that each kind of
index can be built without the packages of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_server.errors import UserError
from retrieval_server.extras import DENSE, INDEX, WORDS, require_packages
from retrieval_server.folder.corpus import CorpusReader, corpus_files, write_passages
from retrieval_server.folder.hard_links import link_or_copy
from retrieval_server.folder.manifest import (
    BM25_FOLDER,
    FORMAT_VERSION,
    LUCENE_FOLDER,
    PASSAGES,
    ROWS,
    BM25Section,
    CorpusSection,
    DenseSection,
    EncoderSection,
    Manifest,
    describe_files,
    write_manifest,
)
from retrieval_server.folder.passages import PassageStore
from retrieval_server.folder.publication import check_target, work_folder
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.indexing.index_manifest import finish_index, library_versions
from retrieval_server.indexing.options import BuildOptions, require_encoder
from retrieval_server.indexing.work_files import (
    KEPT_FILES,
    PARTIAL_INDEX,
    PROGRESS,
    VECTORS,
    keep_if_unchanged,
    remove_except,
)

if TYPE_CHECKING:
    from retrieval_server.encode.encoder import Encoder


def build_index(options: BuildOptions) -> Manifest:
    """Build the index and return its manifest. Raises UserError and leaves `out` unchanged if that fails."""
    check_target(options.out, overwrite=options.overwrite)
    encoder = None
    # Missing models and packages are reported before the corpus is read, which may take minutes.
    if options.backend == "dense":
        encoder = open_encoder(options)
    else:
        check_word_libraries(options.backend)
    disk = partial(estimate_disk, options, encoder and encoder.section)
    with work_folder(options.out, KEPT_FILES, disk) as work:
        reader = CorpusReader(options.corpus, skip_bad_rows=options.skip_bad_rows, progress=options.progress)
        corpus, _ = write_passages(reader, work / PASSAGES)
        store = PassageStore(work / PASSAGES)
        section: BM25Section | DenseSection = options.bm25
        if encoder is not None:
            section = _build_dense(options, work, store, corpus, encoder)
        elif options.backend == "lucene":
            from retrieval_server.search.lucene import build_lucene

            folder = work / LUCENE_FOLDER
            build_lucene(
                store.iter_contents(), options.bm25, folder, total=len(store), progress=options.progress
            )
        else:
            from retrieval_server.search.bm25 import build_bm25

            build_bm25(store.iter_contents(), options.bm25, work / BM25_FOLDER, progress=options.progress)
        sections = {options.backend: section}
        used_openvino = encoder is not None and options.openvino is not None
        return finish_index(options, work, corpus, len(store), sections, used_openvino=used_openvino)


def check_word_libraries(backend: str) -> None:
    """Raise UserError if packages of the back end bm25 or lucene, or Java, are missing. Java is started."""
    require_packages(f"--backend {backend}", backend, WORDS)
    if backend == "lucene":
        from retrieval_server.search.lucene import load_lucene

        load_lucene()


def _build_dense(
    options: BuildOptions, work: Path, store: PassageStore, corpus: CorpusSection, encoder: Encoder
) -> DenseSection:
    """Encode the passages and write the FAISS index. Both resume where an interrupted build stopped."""
    from retrieval_server.encode.vector_files import VectorFiles, encode_rows
    from retrieval_server.indexing.dense_build import check_cells, keep_partial_index, make_dense
    from retrieval_server.indexing.presets import row_type

    dimension = encoder.section.dimension
    kind = row_type(options)
    check_cells(options, dimension, len(store))
    name = VECTORS if kind == "float32" else ROWS
    keep_if_unchanged(work, name, origin_of_rows(corpus, encoder.section, kind))
    keep_partial_index(options, work, len(store), encoder.section, corpus)
    remove_except(work, [name] if kind == "float32" else [name, PARTIAL_INDEX])
    print_resources(options, store, dimension, encoder, encodes=True)
    encode_rows(
        store, encoder, work / name, kind=kind, batch_size=options.batch_size, progress=options.progress
    )
    vectors = VectorFiles([work / name], dimension, kind)
    return make_dense(options, work, store, encoder.section, vectors, encoder)


def merge_parts(options: BuildOptions, parts: Path) -> Manifest:
    """Build a dense index from vectors that were encoded in parts. `options.corpus` is ignored.

    Raises UserError, which names a part that is missing, unfinished, or has another corpus or encoder.
    """
    require_packages("A dense index", "retrieval", INDEX)
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.encode.vector_files import VectorFiles
    from retrieval_server.indexing.dense_build import (
        check_cells,
        check_options,
        keep_partial_index,
        make_dense,
        needs_recall,
    )
    from retrieval_server.indexing.parts import check_parts, open_corpus
    from retrieval_server.indexing.presets import row_type

    check_target(options.out, overwrite=options.overwrite)
    record, _ = open_corpus(parts)
    section, files, kind = check_parts(parts, progress=options.progress)
    check_options(options, section.dimension)
    check_cells(options, section.dimension, record.count)
    if kind not in ("float32", row_type(options)):
        raise UserError(f"{parts}: encoded in {kind}. Merge with the --preset of encode, or encode again.")
    encoder = None
    if needs_recall(options, section.dimension):  # now, so that a missing one is reported at once
        encoder = Encoder.open(section, options.encoder, options.device, options.dtype, options.openvino)
    with work_folder(options.out, KEPT_FILES, partial(estimate_disk, options, section)) as work:
        link_or_copy(parts / PASSAGES, work / PASSAGES)
        vectors = VectorFiles(files, section.dimension, kind)
        store = PassageStore(work / PASSAGES)
        keep_if_unchanged(work, ROWS, origin_of_rows(record.corpus, section, row_type(options), kind))
        keep_partial_index(options, work, len(store), section, record.corpus)
        remove_except(work, [] if row_type(options) == "float32" else [ROWS, PARTIAL_INDEX])
        print_resources(options, store, section.dimension, encoder, encodes=False)
        dense = make_dense(options, work, store, section, vectors, encoder)
        return finish_index(options, work, record.corpus, record.count, {"dense": dense})


def build_hybrid(
    folders: Sequence[Path], out: Path, *, k: int = 60, depth: int = 100, overwrite: bool = False
) -> Manifest:
    """Build an index that searches several `folders` of one corpus and merges their hits (search/hybrid.py).

    `k` is the constant of rank fusion, and `depth` the number of hits from each index. The text is
    hard-linked, or copied if the file system cannot link. Raises UserError unless the folders are indexes of
    one corpus.
    """
    from retrieval_server.search.hybrid import describe_members

    check_target(out, overwrite=overwrite)
    section, member = describe_members(folders, out, k, depth)
    with work_folder(out) as work:
        link_or_copy(folders[0] / PASSAGES, work / PASSAGES)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            backend="hybrid",
            count=member.count,
            corpus=member.corpus,
            dense=member.dense,
            hybrid=section,
            files=describe_files(work),
            built_with=library_versions("hybrid"),
        )
        write_manifest(work, manifest)
    return manifest


def open_encoder(options: BuildOptions) -> Encoder:
    """Load the encoder of a new index.

    Raises UserError if it is missing or does not load, or the options of the index do not fit its dimension.
    """
    require_packages("A dense index", "retrieval", DENSE)
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.indexing.dense_build import check_options

    name = require_encoder(options.encoder)
    encoder = Encoder.create(name, options.encoder_options, options.device, options.dtype, options.openvino)
    check_options(options, encoder.section.dimension)
    return encoder


def estimate_disk(options: BuildOptions, section: EncoderSection | None, work: Path) -> int:
    """Estimate the bytes of text and index on the disk, as far as they are known at this point."""
    files = corpus_files(options.corpus) if options.corpus else []
    text_bytes = sum(path.stat().st_size for path in files)
    try:
        store = PassageStore(work / PASSAGES)
        text_bytes = (work / PASSAGES).stat().st_size
    except UserError:  # it is not written yet
        store = None
    if section is None or store is None:
        return 2 * text_bytes  # the BM25 index of HotpotQA's passages takes 0.85 of the text
    from retrieval_server.indexing.presets import row_type

    return text_bytes + 2 * len(store) * RowLayout(section.dimension, row_type(options)).row_bytes


def print_resources(
    options: BuildOptions, store: PassageStore, dimension: int, encoder: Encoder | None, *, encodes: bool
) -> None:
    """Print the resources that a preset needs for these passages, and check that the disk has room.

    `encoder` is the loaded encoder, if any, and `encodes` says whether the passages must still be encoded.
    Call this after unused files of an interrupted build have been removed. Raises UserError if there is too
    little room.
    """
    from retrieval_server.indexing.presets import chosen_preset
    from retrieval_server.indexing.resource_estimate import estimate_times, print_estimate, refuse_full_disk

    work = options.out.with_name(options.out.name + ".building")
    files = [work / name for name in KEPT_FILES if name != PROGRESS]
    stored = sum(path.stat().st_size for path in files if path.exists())
    if (preset := chosen_preset(options)) is not None:
        batch_size, sample = options.batch_size, options.train_sample
        needs = estimate_times(
            preset, store, dimension, encoder, batch_size, encodes=encodes, train_sample=sample
        )
        print_estimate(preset, len(store), dimension, needs, options.out.parent, stored)
    else:  # the encoder's vectors and the index, whose size is known only for Flat
        copies = encodes + (options.factory == "Flat")
        refuse_full_disk(options.out.parent, copies * 4 * dimension * len(store), stored)


def origin_of_rows(
    corpus: CorpusSection, section: EncoderSection, kind: str, encoded_as: str | None = None
) -> dict[str, object]:
    """Return the origin of a file of rows for work_files.py.

    `kind` is the type of the rows, and `encoded_as` the type of the vectors from which they were converted.
    """
    return {
        "corpus": corpus.sha256,
        "encoder": section.model_dump(),
        "rows": kind,
        "encoded_as": encoded_as or kind,
    }
