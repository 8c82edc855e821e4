"""Measures the recall@k of an approximate index against exact search, at several settings.

The queries come from the user, or are the first sentences of random passages. Each setting is timed as a
single client sees it: one query after the other, and only the search. The fastest setting that finds the
share `GOOD_RECALL` of the hits of exact search, or the share that the preset asks for, becomes the default of
the index, unless the user named one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from retrieval_server.errors import UserError, reason_of, refuse_special_file
from retrieval_server.folder.manifest import RecallRow, RecallSection
from retrieval_server.folder.passages import PassageStore
from retrieval_server.indexing.faiss_build import Vectors
from retrieval_server.search.vectors.faiss_files import open_index
from retrieval_server.search.vectors.faiss_search import (
    MIN_CANDIDATES,
    ApproximateSearch,
    SearchParameters,
    cell_count,
)
from retrieval_server.search.vectors.flat_search import multiply_batches
from retrieval_server.search.vectors.stored_rows import StoredRows

#: The recall that the default settings of an index should reach, unless its preset asks for more.
GOOD_RECALL = 0.95
_TOPK = 10  # the k of recall@k
_SAMPLED_QUERIES = 200
#: The settings that are measured, each about twice as slow as the one before.
_NPROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_EF_SEARCHES = (32, 64, 128, 256, 512)
_BLOCK = 65_536  # vectors that are read at once
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_SEED = 1  # of the sampled passages


@dataclass(frozen=True)
class RescoringRows:
    """How the candidates of a compressed index are scored."""

    stored: StoredRows
    #: The number of candidates of a query.
    candidates: int


def sample_queries(store: PassageStore, count: int = _SAMPLED_QUERIES) -> list[str]:
    """Return the first sentences of random passages, drawn with a fixed seed. The title line is left out."""
    rows = np.random.default_rng(_SEED).permutation(len(store))[:count]
    sentences = []
    for row in rows:
        title, _, text = store[int(row)].contents.partition("\n")
        sentences.append(_SENTENCE_END.split(text.strip() or title.strip(), maxsplit=1)[0])
    return sentences


def read_queries(path: Path) -> list[str]:
    """Return the queries of a text file, one per line. Raises UserError if it has none or cannot be read."""
    remedy = "Give a text file, one query a line."
    try:
        refuse_special_file(path)
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other separators may be inside a query
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--recall-queries {path}: {reason_of(error)}. {remedy}") from None
    if not (queries := [line.strip() for line in lines if line.strip()]):
        raise UserError(f"--recall-queries {path}: no query in it. {remedy}")
    return queries


def measure_recall(
    path: Path,
    vectors: Vectors,
    queries: np.ndarray,
    source: str,
    chosen: SearchParameters,
    rescoring: RescoringRows | None = None,
) -> RecallSection:
    """Measure the recall of the index of `vectors` in the file `path`, for queries (queries, dimension).

    `source` is the origin of the queries in words. The setting that the user has `chosen` is measured as
    well. With `rescoring`, candidates are scored from these rows and the index is mapped, as in a server.
    Raises UserError if the file cannot be read.
    """
    index = open_index(path, mapped=rescoring is not None)
    search = ApproximateSearch(
        index,
        threads=1,
        stored=rescoring.stored if rescoring else None,
        candidates=rescoring.candidates if rescoring else MIN_CANDIDATES,
    )
    _, exact_rows = exact_best(vectors, queries, _TOPK)
    rows = []
    for parameters in _settings(index, chosen):
        parameters.apply(index, compressed=rescoring is not None)
        recall, seconds = _measure(search, queries, exact_rows)
        rows.append(
            RecallRow(
                nprobe=parameters.nprobe,
                ef_search=parameters.ef_search,
                recall=round(recall, 4),
                ms=round(1000 * seconds / len(queries), 3),
            )
        )
    search.close()
    return RecallSection(k=exact_rows.shape[1], queries=len(queries), source=source, rows=tuple(rows))


def _measure(search: ApproximateSearch, queries: np.ndarray, exact_rows: np.ndarray) -> tuple[float, float]:
    """Return the share of `exact_rows`, (queries, k), that is found, and the seconds for all queries."""
    started = time.perf_counter()
    results = [search.find(query[None], _TOPK)[0] for query in queries]
    seconds = time.perf_counter() - started
    pairs = zip(results, exact_rows.tolist(), strict=True)
    shared = sum(len({hit.row for hit in hits} & set(exact)) for hits, exact in pairs)
    return shared / exact_rows.size, seconds


def choose_default(rows: Sequence[RecallRow], target: float = GOOD_RECALL) -> SearchParameters:
    """Return the cheapest setting whose recall is at least `target`, or else the one with the best recall.

    `rows` are in the order of rising cost.
    """
    row = next((row for row in rows if row.recall >= target), None) or max(rows, key=lambda row: row.recall)
    return SearchParameters(row.nprobe, row.ef_search)


def recall_warning(rows: Sequence[RecallRow], target: float = GOOD_RECALL) -> str | None:
    """Return a warning if no row has a recall of at least `target`, and None otherwise."""
    best = max(rows, key=lambda row: row.recall)
    if best.recall >= target:
        return None
    flags = {"--nprobe": best.nprobe, "--ef-search": best.ef_search}
    setting = " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)
    if not setting:
        return (
            f"warning: the index finds {best.recall:.1%} of what exact search finds, less than {target:.1%}."
        )
    return (
        f"warning: no setting that was tried finds {target:.1%} of what exact search finds; the default is "
        f"the best of them, {setting}, with {best.recall:.1%}. Higher numbers may find more."
    )


def recall_table(section: RecallSection) -> str:
    """Return the table of the settings as text."""
    lines = [
        f"recall@{section.k} against exact search; {section.queries} queries: {section.source}",
        "  nprobe  efSearch   recall    ms a query (one at a time)",
    ]
    for row in section.rows:
        nprobe, ef_search = ("-" if value is None else value for value in (row.nprobe, row.ef_search))
        lines.append(f"  {nprobe:>6}  {ef_search:>8}  {row.recall:7.1%}  {row.ms:8.2f}")
    return "\n".join(lines)


def _settings(index: faiss.Index, chosen: SearchParameters) -> list[SearchParameters]:
    """Return the settings to measure, in the order of rising cost; a single default if the index has none."""
    if cells := cell_count(index):
        nprobes = {*(nprobe for nprobe in _NPROBES if nprobe <= cells), *filter(None, [chosen.nprobe])}
        return [SearchParameters(nprobe, chosen.ef_search) for nprobe in sorted(nprobes)]
    if _accepts(index, SearchParameters(ef_search=64)):
        lengths = {*_EF_SEARCHES, *filter(None, [chosen.ef_search])}
        return [SearchParameters(None, length) for length in sorted(lengths)]
    return [SearchParameters()]


def _accepts(index: faiss.Index, parameters: SearchParameters) -> bool:
    """Apply the settings if they exist for the index, and return whether they do."""
    try:
        parameters.apply(index)
    except UserError:
        return False
    return True


def exact_best(vectors: Vectors | np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` largest inner products and their rows, (queries, k) each, best first.

    The vectors are read once, in blocks. If there are fewer than `k` vectors, there are as many columns as
    vectors.
    """
    multiply_batches(queries.shape[1])
    k = min(k, len(vectors))
    scores = np.empty((len(queries), 0), np.float32)
    rows = np.empty((len(queries), 0), np.int64)
    for first_row in range(0, len(vectors), _BLOCK):
        block = vectors[first_row : first_row + _BLOCK]
        block_scores, block_rows = faiss.knn(
            queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT
        )
        scores = np.concatenate([scores, block_scores], axis=1)
        rows = np.concatenate([rows, block_rows + first_row], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, rows = (np.take_along_axis(array, best, axis=1) for array in (scores, rows))
    return scores, rows
