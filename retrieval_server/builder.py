"""Builds an index folder from a corpus in one go (shards.py: in several processes or on several machines).

All work is done in ``OUT.building`` beside the target; the manifest is written last and the folder renamed
then, so that ``OUT`` is either a finished index or not there. A build that was killed leaves
``OUT.building``; the same command goes on from the vectors in it, if corpus and encoder are still the same
(``progress.json`` tells), else starts over.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from retrieval_server.corpus import CorpusReader
from retrieval_server.encoder_settings import EncoderOptions
from retrieval_server.errors import BuildError, CorpusError
from retrieval_server.manifest import (
    BM25_FOLDER,
    FAISS_INDEX,
    FORMAT_VERSION,
    MANIFEST,
    PASSAGES,
    BM25Section,
    CorpusSection,
    DenseSection,
    Manifest,
    describe_files,
    write_manifest,
)
from retrieval_server.passages import PassageStore, PassageWriter

_VECTORS = "vectors.f32"
_PROGRESS = "progress.json"
_LIBRARIES = {"dense": ("faiss-cpu", "sentence-transformers", "torch"), "bm25": ("bm25s",)}


@dataclass(frozen=True)
class BuildOptions:
    """What to build. The encoder's options matter for ``dense``, ``bm25`` for ``bm25``."""

    corpus: Path | Sequence[Path]
    out: Path
    backend: Literal["dense", "bm25"]
    encoder: str | None = None
    encoder_options: EncoderOptions = field(default_factory=EncoderOptions)
    factory: str = "Flat"
    batch_size: int = 64
    device: str | None = None
    bm25: BM25Section = BM25Section(stemmer="english", stopwords="english", k1=1.2, b=0.75)
    skip_bad_rows: bool = False
    overwrite: bool = False
    progress: bool = True


def build_index(options: BuildOptions) -> Manifest:
    """Build the index and return its manifest.

    Raises a RetrievalServerError that names the remedy; ``out`` is then as it was before.
    """
    out = options.out
    if out.exists() and not options.overwrite:
        raise BuildError(f"{out} exists. Choose another --out, or replace it with --overwrite.")
    if out.exists() and not (out / MANIFEST).is_file():
        raise BuildError(f"{out} is not an index, so --overwrite does not touch it. Choose another --out.")
    encoder = None
    if options.backend == "dense":
        encoder = _open_encoder(options)  # first: a wrong encoder shows before the corpus is read
    with _work_folder(out) as work:
        reader = CorpusReader(options.corpus, skip_bad_rows=options.skip_bad_rows, progress=options.progress)
        corpus = write_passages(reader, work / PASSAGES)
        store = PassageStore(work / PASSAGES)
        sections: dict[str, BM25Section | DenseSection] = {}
        if encoder is not None:
            from retrieval_server.dense import write_faiss_index
            from retrieval_server.encoding import Vectors, encode_rows

            section = DenseSection(encoder=encoder.section, metric="inner_product", factory=options.factory)
            sections["dense"] = section
            _keep_or_drop_vectors(work, {"corpus": corpus.sha256, "encoder": encoder.section.model_dump()})
            encode_rows(
                store, encoder, work / _VECTORS, batch_size=options.batch_size, progress=options.progress
            )
            vectors = Vectors([work / _VECTORS], encoder.section.dimension)
            write_faiss_index(vectors, options.factory, work / FAISS_INDEX)
        else:
            from retrieval_server.bm25 import build_bm25

            sections["bm25"] = options.bm25
            build_bm25(store.iter_contents(), options.bm25, work / BM25_FOLDER, progress=options.progress)
        for name in (_VECTORS, _PROGRESS):
            (work / name).unlink(missing_ok=True)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            backend=options.backend,
            count=len(store),
            corpus=corpus,
            files=describe_files(work),
            built_with=_versions(options.backend),
            **sections,
        )
        write_manifest(work, manifest)
        _publish(work, out)
    return manifest


def _open_encoder(options: BuildOptions):
    from retrieval_server.dense import check_factory
    from retrieval_server.encoder import Encoder

    if options.encoder is None:
        raise BuildError("--backend dense needs --encoder NAME_OR_PATH (--encoder minilm needs no download).")
    check_factory(options.factory)
    return Encoder.create(options.encoder, options.encoder_options, options.device)


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """``OUT.building``, held by one process: a second build of the same target is refused."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.with_name(out.name + ".building")
    work.mkdir(exist_ok=True)
    # The lock is on the folder itself: it leaves no file behind and falls with the process.
    descriptor = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError(f"{work}: another build of this index is running.") from None
        for left in work.iterdir():  # by a killed build; only its vectors are worth keeping
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name not in (_VECTORS, _PROGRESS):
                left.unlink()
        yield work
    finally:
        os.close(descriptor)


def write_passages(reader: CorpusReader, path: Path) -> CorpusSection:
    """Write the corpus's text to ``path``. Raises CorpusError for a bad or empty corpus and for equal ids."""
    with PassageWriter(path) as writer:
        for place, passage in reader:
            writer.add(passage, place)
    if writer.count == 0:
        skipped = f" ({reader.skipped} malformed rows were skipped)" if reader.skipped else ""
        raise CorpusError(f"{reader.source}: no passage in it{skipped}. An index needs at least one.")
    writer.refuse_duplicate_ids(reader.where)
    return CorpusSection(source=reader.source, sha256=writer.sha256, skipped_rows=reader.skipped)


def _keep_or_drop_vectors(work: Path, wanted: dict) -> None:
    """Vectors of an earlier, interrupted build stay only if they are of the same corpus and encoder."""
    path = work / _PROGRESS
    try:
        same = json.loads(path.read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    if not same:
        (work / _VECTORS).unlink(missing_ok=True)
        path.write_text(json.dumps(wanted), encoding="utf-8")


def _versions(backend: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("pyarrow", *_LIBRARIES[backend]):
        try:
            found[name] = version(name)
        except ImportError:  # faiss comes under several names
            continue
    return found


def _publish(work: Path, out: Path) -> None:
    """Give the finished folder its name. An old index is moved aside first: no moment shows half of one."""
    aside = out.with_name(out.name + ".replaced")
    if out.exists():
        shutil.rmtree(aside, ignore_errors=True)
        out.rename(aside)
    work.rename(out)
    shutil.rmtree(aside, ignore_errors=True)
