"""Finishes a built index: removes the work files, and writes the manifest, which is the last file."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retrieval_server.folder.manifest import (
    FORMAT_VERSION,
    ROWS,
    BM25Section,
    CorpusSection,
    DenseSection,
    Manifest,
    describe_files,
    write_manifest,
)
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.indexing.work_files import KEPT_FILES

#: The names under which FAISS is distributed.
_FAISS = ("faiss-cpu", "faiss-gpu-cu12", "faiss-gpu", "faiss")
_LIBRARIES = {
    "dense": (*_FAISS, "sentence-transformers", "torch"),
    "bm25": ("bm25s",),
    "lucene": ("pyserini",),
}


def finish_index(
    options: BuildOptions,
    work: Path,
    corpus: CorpusSection,
    count: int,
    sections: dict[str, BM25Section | DenseSection],
    *,
    used_openvino: bool = False,
) -> Manifest:
    """Remove all work files and write the manifest, before `work_folder` publishes the index. Returns it.

    `sections` are the manifest's sections by name. `used_openvino` says whether OpenVINO encoded the
    passages, so that its version is recorded. Work files that a build of another kind has left are removed
    too.
    """
    dense = sections.get("dense")
    rescores = isinstance(dense, DenseSection) and dense.rescoring is not None
    for name in KEPT_FILES:
        if name != ROWS or not rescores:
            (work / name).unlink(missing_ok=True)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        backend=options.backend,
        count=count,
        corpus=corpus,
        files=describe_files(work, options.progress),
        built_with=library_versions(options.backend, *(("openvino",) if used_openvino else ())),
        **sections,
    )
    write_manifest(work, manifest)
    return manifest


def library_versions(backend: str, *libraries: str) -> dict[str, str]:
    """Return the versions of Python and of the libraries that build an index of this kind."""
    versions = {"python": platform.python_version()}
    for name in ("pyarrow", *_LIBRARIES.get(backend, ()), *libraries):
        with suppress(PackageNotFoundError):  # only one of FAISS's distributions is installed
            versions[name] = version(name)
    return versions
