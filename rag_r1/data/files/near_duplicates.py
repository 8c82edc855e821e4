"""Finds near-duplicate questions: reordered words, one word more, a typing error.

The similarity of two questions is the Jaccard index of their character 3-grams (of `question_key`, so case,
white space and the final question mark do not count). MinHash (Broder, 1997) with locality-sensitive hashing
finds candidates without comparing all pairs: rensa computes the signatures; they are cut into bands, and
questions that agree in a band are candidates. A candidate is then compared exactly, so what is reported is
at least as similar as asked. With the bands that `bands` chooses, at least 95 % of the pairs of just that
similarity become candidates, and nearly all of those that are more alike.

Only the hashes of the bands are kept, in files; a band is loaded at a time, some 50 bytes for each question.
Within a band a question is compared with the first `COMPARED` only that share its hash: so the work is linear
in the number of questions, even if all are alike, and each question is reported with the first one that it is
found to resemble.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from rag_r1.data.files.duplicates import question_key
from rag_r1.io.atomic_files import name_in_errors
from rag_r1.io.errors import DataError

#: Characters of a gram.
GRAM = 3
#: Values of a signature.
VALUES = 128
#: Share of the pairs of just the wanted similarity that must become candidates.
RECALL = 0.95
#: Questions with the same hash with which a later one is compared.
COMPARED = 4
#: Questions whose signatures are computed together.
_BATCH = 2048
_SEED = 0
MISSING = (
    "the search for nearly equal questions needs the package rensa: install the extra `data` "
    '(pip install "rag-r1[data]"), or switch the search off with --near-duplicates 0'
)


@dataclass(frozen=True)
class SimilarPair:
    """Two questions, by their numbers from 0 in the given order, and their similarity."""

    later: int
    first: int
    similarity: float


def require_library() -> None:
    """Raises DataError, which names the extra to install, if rensa is missing."""
    try:
        import rensa  # noqa: F401
    except ImportError as error:
        raise DataError(MISSING) from error


def bands(similarity: float) -> tuple[int, int]:
    """(number of bands, values in each) for a similarity: the most values with which `RECALL` of the pairs of
    that similarity become candidates."""
    for values in range(16, 1, -1):
        count = VALUES // values
        if 1 - (1 - similarity**values) ** count >= RECALL:
            return count, values
    return VALUES, 1


def near_duplicates(
    questions: Iterable[str], get_question: Callable[[int], str], similarity: float
) -> Iterator[SimilarPair]:
    """Find every question that resembles an earlier one, with the first such one; equal questions are left
    out.

    `get_question` gives a question again by its number, from 0. `similarity`: above 0, at most 1. Raises
    DataError if rensa is missing.
    """
    require_library()
    count, values = bands(similarity)
    with tempfile.TemporaryDirectory(prefix="near-duplicates-") as folder:
        files = [Path(folder, f"band{band}") for band in range(count)]
        n = _write_bands(questions, files, values)
        reported = np.zeros(n, dtype=bool)
        for path in files:
            for later, first in _candidates(np.fromfile(path, dtype=np.uint64)):
                if reported[later]:
                    continue
                actual = jaccard(get_question(later), get_question(first))
                if similarity <= actual < 1:
                    reported[later] = True
                    yield SimilarPair(later, first, actual)


def trigrams(question: str) -> list[str]:
    """The 3-grams of a question; a shorter one is a single gram."""
    text = question_key(question)
    return [text[i : i + GRAM] for i in range(len(text) - GRAM + 1)] or [text]


def jaccard(first: str, second: str) -> float:
    """The similarity of two questions, from 0 to 1."""
    first_grams = set(trigrams(first))
    second_grams = set(trigrams(second))
    return len(first_grams & second_grams) / len(first_grams | second_grams)


def _write_bands(questions: Iterable[str], files: list[Path], values: int) -> int:
    """Write the hash of each question in each band; returns the number of questions."""
    from rensa import RMinHash

    opened = [path.open("wb") for path in files]
    remaining = iter(questions)
    n = 0
    try:
        while batch := list(islice(remaining, _BATCH)):
            n += len(batch)
            matrix = RMinHash.digest_matrix_from_token_sets(list(map(trigrams, batch)), VALUES, _SEED)
            signatures = np.array(matrix.to_rows(), dtype=np.uint64)
            for band, file in enumerate(opened):
                with name_in_errors(files[band]):
                    _hash(signatures[:, band * values : (band + 1) * values]).tofile(file)
    finally:
        for file in opened:
            file.close()
    return n


def _hash(part: np.ndarray) -> np.ndarray:
    """A 64-bit hash (FNV-1a, by value instead of by byte) of each row."""
    hashes = np.full(len(part), 0xCBF29CE484222325, dtype=np.uint64)
    for column in part.T:
        hashes = (hashes ^ column) * np.uint64(0x100000001B3)
    return hashes


def _candidates(hashes: np.ndarray) -> Iterator[tuple[int, int]]:
    """(later, earlier) numbers of questions with the same hash: each with the first `COMPARED` of them."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    new = np.append(True, ordered[1:] != ordered[:-1]) if len(ordered) else np.zeros(0, dtype=bool)
    starts = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    rank = np.arange(len(order)) - starts
    for position in np.flatnonzero(rank):
        for earlier in range(min(int(rank[position]), COMPARED)):
            yield int(order[position]), int(order[starts[position] + earlier])
