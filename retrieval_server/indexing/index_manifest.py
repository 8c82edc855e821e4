"""Writes the manifest of a built index folder: the last file, after which the folder gets its name."""

from __future__ import annotations

import platform
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

_FAISS = ("faiss-cpu", "faiss-gpu-cu12", "faiss-gpu", "faiss")  # its distributions
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
    used_openvino: bool = False,
) -> Manifest:
    """Remove the work files and write the manifest, the last file before `work_folder` publishes the index.

    `used_openvino`: whether OpenVINO encoded the passages here, so that its version is recorded. Work files
    are removed also where a build of another kind has left them.
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
    """The versions of Python and of the libraries that build an index of this kind."""
    versions = {"python": platform.python_version()}
    for name in ("pyarrow", *_LIBRARIES.get(backend, ()), *libraries):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # of FAISS, one is installed
            continue
    return versions
