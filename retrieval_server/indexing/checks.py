"""The checks before an index is built: functions for `check_all`, each of which raises UserError.

They find problems before the work starts: folders that may not be written, missing files and packages, and
settings of the encoder that do not fit. Only the first rows of each file of a corpus are parsed; the build
itself reads the whole corpus before it encodes anything.

The packages of an extra may be missing when the checks are collected. So modules that need them are imported
inside a check, or their checks are left out, since the check of the packages already names the command that
installs them.
"""

from __future__ import annotations

import math
import re
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
from retrieval_server.errors import UserError, single_errors
from retrieval_server.extras import DENSE, MODEL, are_installed, require_packages
from retrieval_server.folder.corpus import check_first_rows, corpus_files, refuse_empty
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.folder.publication import check_target
from retrieval_server.indexing.builder import check_word_libraries
from retrieval_server.indexing.options import BuildOptions, require_encoder

#: The number of sub-vectors of a product quantiser (`PQ64`, `OPQ64`, `PRQ8x2x4`). FAISS refuses a quantiser
#: if this number does not divide the dimension, and sets no other limit to it.
_SUB_VECTORS = re.compile(r"Q([1-9]\d*)")
#: The file in the folder of each run of rag-r1's commands.
_RUN_SETTINGS = "settings.yaml"
#: The dimension for which a factory string without sub-vectors is tried, and one that no encoder exceeds.
_USUAL_DIMENSION, _MAX_DIMENSION = 768, 65_536
#: A check raises UserError. Its result is not used.
Check = Callable[[], object]


def build_checks(options: BuildOptions) -> Iterator[Check]:
    """Yield the checks of a build from a corpus."""
    yield partial(check_target, options.out, overwrite=options.overwrite)
    yield from corpus_checks(options.corpus, options.skip_bad_rows)
    if options.backend == "dense":
        yield from dense_checks(options)
    else:
        yield partial(check_word_libraries, options.backend)


def corpus_checks(corpus: Path | Sequence[Path], skip_bad_rows: bool = False) -> Iterator[Check]:
    """Yield a check of the first rows for each path of a corpus, and one of all paths together.

    The latter refuses a file that is given twice, and a corpus without a row.
    """
    for path in [corpus] if isinstance(corpus, Path) else corpus:
        yield partial(_check_rows, path, skip_bad_rows)
    yield partial(refuse_empty, corpus)


def _check_rows(path: Path, skip_bad_rows: bool) -> None:
    """Check the first rows of a path as `check_first_rows` does, and say so if it is the folder of a run."""
    try:
        check_first_rows(path, skip_bad_rows=skip_bad_rows)
    except UserError as error:
        if not (path / _RUN_SETTINGS).is_file():
            raise
        corpus_files(path)  # raises the same error as `refuse_empty` if the folder has no file of rows
        text = f"{path} is the folder of a run of rag-r1, and a file in it is no corpus"
        raise UserError(f"{text} ({single_errors(error)[0]}) Give a file of passages.") from error


def dense_checks(options: BuildOptions) -> Iterator[Check]:
    """Yield the checks of the encoder's and FAISS's options, or only that of missing packages."""
    yield partial(require_packages, "A dense index", "retrieval", DENSE)
    if not are_installed(DENSE):
        return
    from retrieval_server.indexing.faiss_recall import read_queries

    yield partial(check_encoder, options.encoder, options.encoder_options)
    yield partial(check_device, options.device)
    yield partial(check_factory, options.factory)
    if options.recall_queries is not None:
        yield partial(read_queries, options.recall_queries)


def check_factory(factory: str) -> None:
    """Raise UserError if the installed FAISS makes no index of this factory string, whatever the dimension.

    The encoder's dimension is unknown before it is loaded, so FAISS is asked for a dimension that all numbers
    of sub-vectors divide. The build asks again for the real one, before it encodes (`check_options`).
    """
    from retrieval_server.indexing.faiss_build import make_index

    sub_vectors = [int(number) for number in _SUB_VECTORS.findall(factory)]
    dimension = math.lcm(*sub_vectors) if sub_vectors else _USUAL_DIMENSION
    make_index(factory, min(dimension, _MAX_DIMENSION))


def check_encoder(name: str | None, options: EncoderOptions) -> None:
    """Raise UserError if a local encoder is incomplete, or its pooling is unknown or contradictory.

    A Hub name is not looked up.
    """
    name = require_encoder(name)
    if not is_hub_name(name):
        recorded_name, folder = resolve_model(name)
        if are_installed(MODEL):
            check_weights(folder)
            _check_config(folder)
        choose_pooling(name, options, read_folder_settings(folder), find_family(recorded_name))


def _check_config(folder: Path) -> None:
    """Raise UserError if transformers cannot use the config.json of a folder that has no modules.json."""
    from transformers import AutoConfig

    if (folder / "modules.json").exists():
        return  # sentence-transformers names another file or folder there
    try:
        AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the configuration class of a model may raise anything
        reason = str(error).partition("\n")[0].removesuffix(".")
        raise UserError(
            f"{folder / 'config.json'} cannot be used ({reason}). Fetch the whole model, or give another "
            "--encoder."
        ) from error


def import_checks(
    options: BuildOptions, faiss_file: Path | None, embeddings: Sequence[Path]
) -> Iterator[Check]:
    """Yield the checks of an import of a FAISS file or of embeddings.

    Row i of the file is row i of the corpus, so bad rows of the corpus are never skipped.
    """
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
    """Yield the checks of a hybrid index: each folder is an index.

    Whether they fit together is checked by the build (`describe_members`).
    """
    yield partial(check_target, out, overwrite=overwrite)
    yield from (partial(read_manifest, folder) for folder in dict.fromkeys(folders))
    yield partial(_refuse_repeated, folders)


def _refuse_repeated(folders: Sequence[Path]) -> None:
    """Raise UserError for an index that is given twice, which would count twice."""
    first_names: dict[Path, Path] = {}
    for folder in folders:
        if (first := first_names.setdefault(folder.resolve(), folder)) is not folder:
            raise UserError(f"--of {first} is given twice. Leave one out.")
