"""Hybrid search: searches several indexes of one corpus and merges their results by reciprocal rank fusion.

Each index returns its `depth` best passages. The score of a passage is the sum of 1 / (k + rank) over the
lists that contain it (Cormack, Clarke and Büttcher, SIGIR 2009, with their k of 60). Only ranks count, so
word scores and inner products need no common scale. The depth does not depend on topk, so that a longer
answer begins with the shorter one. The folder of a hybrid index contains the text and the paths of the other
folders, which must have the same corpus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from retrieval_server.determinism import weakest_determinism
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import (
    HybridSection,
    Manifest,
    check_files,
    read_manifest,
    require_equal,
)
from retrieval_server.folder.shard_set import IndexFolder
from retrieval_server.search.backends import Backend, Hit


def fuse(rankings: Sequence[Sequence[Hit]], k: int, topk: int) -> list[Hit]:
    """Return the `topk` best hits by reciprocal rank fusion of the rankings; equal sums in corpus order.

    The order of the rankings does not matter: sums are kept as pairs of numerator and denominator and rounded
    only once, because equal sums of rounded numbers may differ (1/10 + 1/2 and 3 times 1/5).
    """
    sums: dict[int, tuple[int, int]] = {}
    for hits in rankings:
        for rank, hit in enumerate(hits, start=1):
            numerator, denominator = sums.get(hit.row, (0, 1))
            sums[hit.row] = numerator * (k + rank) + denominator, denominator * (k + rank)
    fused = [Hit(row, numerator / denominator) for row, (numerator, denominator) in sums.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.row))[:topk]


class HybridBackend(Backend):
    """Several opened indexes of one corpus: a row number means the same passage in all of them."""

    def __init__(self, members: Sequence[Backend], section: HybridSection):
        self._members = list(members)
        self._section = section
        self.overlaps = all(member.overlaps for member in members)
        self.guarantee = weakest_determinism(member.guarantee for member in members)
        self.query_dtype = next((member.query_dtype for member in members if member.query_dtype), None)

    @property
    def paged_in(self) -> float | None:
        shares = [member.paged_in for member in self._members]
        return min((share for share in shares if share is not None), default=None)

    def prepare(self, queries: Sequence[str]) -> list[Any]:
        """Return the queries as each index needs them."""
        return [member.prepare(queries) for member in self._members]

    def find(self, prepared: list[Any], topk: int) -> list[list[Hit]]:
        depth, k = self._section.depth, self._section.k
        pairs = zip(self._members, prepared, strict=True)
        results = [member.find(queries, depth) for member, queries in pairs]
        return [fuse(rankings, k, topk) for rankings in zip(*results, strict=True)]

    def close(self) -> None:
        for member in self._members:
            member.close()


def open_members(
    folder: Path, manifest: Manifest, verify: bool | None, open_member: Callable[[Path, Manifest], Backend]
) -> HybridBackend:
    """Open the indexes that a hybrid folder names. Raises UserError if one of them no longer fits.

    `verify` has the meaning that it has in `read_members`. If an index does not open, the others are closed.
    """
    assert manifest.hybrid is not None  # `read_manifest` has checked that the section exists
    backends: list[Backend] = []
    with ExitStack() as opened:
        for member in read_members(folder, manifest, verify):
            backends.append(open_member(*member))
            opened.callback(backends[-1].close)
        opened.pop_all()  # all are open, and stay so
    return HybridBackend(backends, manifest.hybrid)


def read_members(folder: Path, manifest: Manifest, verify: bool | None) -> list[IndexFolder]:
    """Return the indexes that a hybrid folder names, with their manifests; an empty list for another index.

    `verify` says whether the hashes of their files are compared, too; None: only those of folders of up to
    1 GiB (`check_files`). Raises UserError if one of the indexes no longer fits.
    """
    members = []
    for name in manifest.hybrid.of if manifest.hybrid else ():
        path = folder / name
        member = read_manifest(path)
        remedy = f"{folder} is a hybrid of it: build both of the same corpus again."
        require_equal(f"{path}: corpus sha256", manifest.corpus.sha256, member.corpus.sha256, remedy)
        if member.backend == "hybrid":
            raise UserError(f"{path}: it is itself a hybrid index by now. {remedy}")
        check_files(path, member, verify)
        members.append(IndexFolder(path, member))
    return members


def describe_members(
    folders: Sequence[Path], out: Path, k: int, depth: int
) -> tuple[HybridSection, Manifest]:
    """Return the section of a hybrid index of these folders, and the manifest of its main member.

    The hybrid takes its description from the main member: the first dense index, or else the first index.
    Raises UserError unless the folders are two or more finished indexes of one corpus, whose files have the
    right sizes.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("--backend hybrid needs two indexes or more, each once: --of DIR --of DIR.")
    manifests = [read_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        check_files(folder, manifest, verify=False)
        if manifest.backend == "hybrid":
            raise UserError(f"--of {folder}: a hybrid itself. Name the indexes that it consists of.")
        if manifest.corpus.sha256 != manifests[0].corpus.sha256:
            raise UserError(
                f"--of {folder}: of another corpus than {folders[0]}: sha256 {manifest.corpus.sha256} and "
                f"{manifests[0].corpus.sha256}. Rows must be the same passages: build both of one corpus."
            )
    target = out.parent.resolve() / out.name  # a link at `out` is replaced, not followed
    if inside := [folder for folder in folders if folder.resolve().is_relative_to(target)]:
        raise UserError(f"--out {out} would replace {inside[0]}, which it searches. Choose another --out.")
    # The paths are relative, so that all folders can be moved together. They hold in the folder in which the
    # index is built, too, because it is next to `out`.
    names = tuple(os.path.relpath(folder.resolve(), target) for folder in folders)
    dense = next((manifest for manifest in manifests if manifest.dense), manifests[0])
    return HybridSection(of=names, k=k, depth=depth), dense
