"""Opens an index folder as a source, which turns queries into documents.

`IndexSource` combines the passages of the folder with a back end, which finds their row numbers.
`open_backend` imports only the back end that the manifest names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval_server.errors import REBUILD, size_text
from retrieval_server.extras import DENSE, INDEX, WORDS, require_packages
from retrieval_server.folder.manifest import (
    BM25_FOLDER,
    FAISS_INDEX,
    LUCENE_FOLDER,
    PASSAGES,
    BM25Section,
    DenseSection,
    Manifest,
    check_files,
    read_manifest,
    require_equal,
)
from retrieval_server.folder.passages import Passage, PassageStore
from retrieval_server.search.backends import Backend
from retrieval_server.search.options import OpenOptions
from retrieval_server.source import (
    ScoredPassage,
    SourceDescription,
    StagedSource,
    describe_index,
    round_score,
)


class IndexSource(StagedSource):
    """Searches one index in two stages, `prepare` and `find`; `search` runs both."""

    def __init__(self, manifest: Manifest, passages: PassageStore, backend: Backend):
        self.manifest = manifest
        self._passages = passages
        self._backend = backend
        self.overlaps = backend.overlaps

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        encoder: str | None = None,
        device: str | None = None,
        verify: bool | None = None,
        options: OpenOptions | None = None,
        encodes: bool = True,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> IndexSource:
        """Load an index folder and check that its parts fit each other and the encoder.

        `encoder` and `device` are short for `options` with only these two, and have no effect beside
        `options`. `verify` says whether the hashes of files are compared (`check_files`). If `encodes` is
        false, no encoder is loaded, and `find` needs vectors from another process. `on_step` is called before
        each step with a description of what is loaded next.

        Raises UserError, with the two values that differ and the remedy.
        """
        options = options or OpenOptions(encoder=encoder, device=device)
        manifest = read_manifest(folder)
        on_step(f"{folder.name}: the files, {size_text(sum(file.bytes for file in manifest.files.values()))}")
        check_files(folder, manifest, verify)
        on_step(f"{folder.name}: {manifest.count} passages")
        passages = PassageStore(folder / PASSAGES)
        require_equal(f"{folder / PASSAGES}: passages", manifest.count, len(passages), REBUILD)
        backend = open_backend(folder, manifest, options, encodes, verify, on_step)
        return cls(manifest, passages, backend)

    @property
    def description(self) -> SourceDescription:
        """The description of the index, with the guarantee and the prefetched share in this process."""
        return replace(
            describe_index(self.manifest),
            query_dtype=self._backend.query_dtype,
            guarantee=self._backend.guarantee,
            paged_in=self._backend.paged_in,
        )

    def prepare(self, queries: Sequence[str]) -> Any:
        """Run the first stage: convert queries, which must not be blank, to what `find` needs."""
        return self._backend.prepare(queries)

    def find(self, prepared: Any, topks: Sequence[int]) -> list[tuple[ScoredPassage, ...]]:
        """Run the second stage: return at most `topks[i]` documents for query `i`, best first."""
        return [tuple(map(round_score, hits)) for hits in self.find_unrounded(prepared, topks)]

    def find_unrounded(self, prepared: Any, topks: Sequence[int]) -> list[list[ScoredPassage]]:
        """Run the second stage with unrounded scores, which are needed to merge the hits of shards."""
        results = self._backend.find(prepared, max(topks))
        return [
            [ScoredPassage(self._passages[hit.row], hit.score) for hit in hits[:topk]]
            for hits, topk in zip(results, topks, strict=True)
        ]

    def search(self, queries: Sequence[str], topk: int) -> list[list[ScoredPassage]]:
        """Return at most `topk` documents for each query, best first. A blank query has none."""
        texts = [query for query in queries if query.strip()]
        hits = iter(self.find(self.prepare(texts), [topk] * len(texts)) if texts else ())
        return [list(next(hits)) if query.strip() else [] for query in queries]

    def documents(self, ids: Sequence[str]) -> list[Passage | None]:
        """Return the documents with these ids, None for an unknown id. This may take seconds."""
        return self._passages.find(ids)

    def warm_up(self) -> None:
        """Answer one query, so that the first client does not wait for lazy initialisation."""
        self.search([self._passages[0].contents[:200]], 1)

    def close(self) -> None:
        self._backend.close()


def require_libraries(manifest: Manifest, options: OpenOptions, encodes: bool = True) -> None:
    """Raise UserError if the libraries that search this index are not installed.

    A user's own back end may need others, so nothing is required for it.
    """
    if options.backend:
        return
    if manifest.dense is not None:  # a hybrid index has the section of its dense member
        require_packages("A dense index", "retrieval", DENSE if encodes else INDEX)
    if manifest.backend in ("bm25", "lucene"):
        require_packages(f"A {manifest.backend} index", manifest.backend, WORDS)


def open_backend(
    folder: Path,
    manifest: Manifest,
    options: OpenOptions,
    encodes: bool = True,
    verify: bool | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Backend:
    """Open the back end of the folder, as `IndexSource.open` describes the arguments. Raises UserError.

    The imports are inside this function, so that BM25 does not need torch and dense search does not need
    bm25s.
    """
    require_libraries(manifest, options, encodes)
    if options.backend:
        from retrieval_server.search.custom_backend import open_custom_backend

        return open_custom_backend(options.backend, folder, manifest)
    match manifest:
        case Manifest(backend="hybrid"):
            from retrieval_server.search.hybrid import open_members

            def open_member(member: Path, manifest: Manifest) -> Backend:
                return open_backend(member, manifest, options, encodes, on_step=on_step)

            return open_members(folder, manifest, verify, open_member)
        case Manifest(backend="dense", dense=DenseSection() as dense):
            return _open_dense(folder, dense, manifest.count, options, encodes, on_step)
        case Manifest(backend="lucene", lucene=BM25Section() as section):
            on_step(f"{folder.name}: the lucene index")
            from retrieval_server.search.lucene import LuceneBackend

            return LuceneBackend(folder / LUCENE_FOLDER, section, manifest.count)
        case Manifest(backend="bm25", bm25=BM25Section() as section):
            on_step(f"{folder.name}: the bm25 index")
            from retrieval_server.search.bm25 import BM25Backend

            return BM25Backend(folder / BM25_FOLDER, section, manifest.count)
    raise AssertionError("read_manifest refuses a back end without its section")


def _open_dense(
    folder: Path,
    section: DenseSection,
    count: int,
    options: OpenOptions,
    encodes: bool,
    on_step: Callable[[str], None],
) -> Backend:
    """Open the back end of the folder's vectors, and their encoder if `encodes` is true."""
    if encodes:  # report the step before the imports, since importing torch takes seconds
        on_step(f"{folder.name}: encoder {options.encoder or section.encoder.name}")
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.search.dense import DenseBackend

    loaded = None
    if encodes:
        loaded = Encoder.open(
            section.encoder, options.encoder, options.device, options.dtype, options.openvino
        )
    on_step(f"{folder.name}: {FAISS_INDEX}, {size_text((folder / FAISS_INDEX).stat().st_size)}")
    return DenseBackend(folder / FAISS_INDEX, section, count, loaded, options)
