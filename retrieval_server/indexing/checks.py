"""The checks before an index is built: functions for `check_all`, each raising UserError.

They check what can be known before the work: whether folders may be written, files and packages are there,
and the encoder's settings fit. Of a corpus the first rows of each file are parsed; the build itself
reads all of it before it encodes any of it.

The packages of an extra may be missing while these functions are collected. So what needs them is imported
inside a check, or left out, for the check of the packages itself says what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from retrieval_server.encode.encoder_settings import choose_pooling, find_family
from retrieval_server.encode.model_folder import (
    check_weights,
    is_hub_name,
    read_folder_settings,
    resolve_model,
)
from retrieval_server.encode.options import EncoderOptions, check_device
from retrieval_server.extras import DENSE, MODEL, WORDS, are_installed, require_packages
from retrieval_server.folder.corpus import check_first_rows
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.folder.publication import check_target
from retrieval_server.indexing.options import BuildOptions, require_encoder

#: Stands in for the encoder's dimension, which is not known before it is loaded. Every usual number of
#: sub-vectors divides it, so a factory string that FAISS refuses at this dimension is wrong at any.
_TRIAL_DIMENSION = 6720
#: Raises UserError; what it returns is not used.
Check = Callable[[], object]


def build_checks(options: BuildOptions) -> Iterator[Check]:
    """The checks of a build from a corpus."""
    yield partial(check_target, options.out, overwrite=options.overwrite)
    yield from corpus_checks(options.corpus, options.skip_bad_rows)
    if options.backend == "dense":
        yield from dense_checks(options)
    else:
        yield partial(require_packages, f"--backend {options.backend}", options.backend, WORDS)
    if options.backend == "lucene" and are_installed(WORDS):
        yield check_lucene


def corpus_checks(corpus: Path | Sequence[Path], skip_bad_rows: bool = False) -> Iterator[Check]:
    """One check for each file of a corpus: its first rows can be read."""
    for path in [corpus] if isinstance(corpus, Path) else corpus:
        yield partial(check_first_rows, path, skip_bad_rows=skip_bad_rows)


def check_lucene() -> None:
    """Raise UserError if a part of Lucene or Java is missing; it starts the JVM. Needs bm25s."""
    from retrieval_server.search.lucene import load_lucene

    load_lucene()


def dense_checks(options: BuildOptions) -> Iterator[Check]:
    """The checks of the encoder's and FAISS's options; without their packages, the check of these alone."""
    yield partial(require_packages, "A dense index", "retrieval", DENSE)
    if are_installed(DENSE):
        yield partial(check_encoder, options.encoder, options.encoder_options)
        yield partial(check_device, options.device)
        from retrieval_server.indexing.faiss_build import make_index
        from retrieval_server.indexing.faiss_recall import read_queries

        yield partial(make_index, options.factory, _TRIAL_DIMENSION)
        if options.recall_queries is not None:
            yield partial(read_queries, options.recall_queries)


def check_encoder(name: str | None, options: EncoderOptions) -> None:
    """Raise UserError if the encoder is not on this machine or its weights are not complete, or its pooling
    is not settled; a name on the Hub is not looked up."""
    name = require_encoder(name)
    if not is_hub_name(name):
        recorded_name, folder = resolve_model(name)
        if are_installed(MODEL):
            check_weights(folder)
        choose_pooling(name, options, read_folder_settings(folder), find_family(recorded_name))


def import_checks(
    options: BuildOptions, faiss_file: Path | None, embeddings: Sequence[Path]
) -> Iterator[Check]:
    """The checks of an import: of a FAISS file or of embeddings, whose row i is row i of the corpus. So bad
    rows of the corpus are never left out."""
    yield partial(check_target, options.out, overwrite=options.overwrite)
    yield from corpus_checks(options.corpus)
    yield from dense_checks(options)
    if are_installed(DENSE):
        from retrieval_server.indexing.embedding_files import check_file
        from retrieval_server.indexing.index_import import check_kind

        yield from (partial(check_file, path) for path in embeddings)
        if faiss_file is not None:
            yield partial(check_kind, faiss_file)


def hybrid_checks(folders: Sequence[Path], out: Path, overwrite: bool) -> Iterator[Check]:
    """The checks of a hybrid: each folder is an index. The build checks that they fit together
    (`describe_members`)."""
    yield partial(check_target, out, overwrite=overwrite)
    yield from (partial(read_manifest, folder) for folder in folders)
