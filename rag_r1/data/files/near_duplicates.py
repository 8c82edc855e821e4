"""Finds near-duplicate questions, which differ by the order of words, an additional word, or a typing error.

The similarity of two questions is the Jaccard index of their character 3-grams. These are taken from
`question_key`, so case, white space and the final question mark do not count. MinHash (Broder, 1997) with
locality-sensitive hashing finds candidates without comparing all pairs: rensa computes a signature for each
question, the signatures are cut into bands, and questions that agree in a band are candidates. Candidates are
then compared exactly, so all reported pairs have at least the requested similarity. With the bands that
`bands` chooses, at least 95 % of the pairs with exactly this similarity become candidates, and nearly all
pairs that are more similar; below a similarity of 0.023 it is fewer, since a signature has only 128 values.

Only the hashes of the bands are stored, in files. One band is loaded at a time, which takes about 50 bytes
per question. Within a band, a question is compared only with the first `COMPARED` questions that share its
hash, so the time is linear in the number of questions even if all are alike. Each question is reported with
the first question that it is found to resemble.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from rag_r1.data.files.duplicates import question_key
from rag_r1.io.atomic_files import name_in_errors
from rag_r1.io.errors import DataError

#: Number of characters of a gram.
GRAM = 3
#: Number of values of a signature.
VALUES = 128
#: Share of the pairs with exactly the requested similarity that must become candidates.
RECALL = 0.95
#: Most values of a band: with this many, unlike questions are hardly ever candidates.
_MOST_VALUES = 16
#: Number of earlier questions with the same hash with which a question is compared.
COMPARED = 4
#: Number of questions whose signatures are computed together.
_BATCH = 2048
_SEED = 0
_MISSING = (
    "the search for nearly equal questions needs the package rensa: install the extra `data` "
    '(pip install "rag-r1[data]"), or switch the search off with --near-duplicates 0'
)


@dataclass(frozen=True)
class SimilarPair:
    """Two similar questions, as their positions in the input, from 0, and their similarity."""

    later: int
    first: int
    similarity: float


def require_library() -> None:
    """Check that rensa is installed. Raises DataError, which names the extra to install, if it is not."""
    try:
        import rensa  # noqa: F401
    except ImportError as error:
        raise DataError(_MISSING) from error


def bands(similarity: float) -> tuple[int, int]:
    """Return (number of bands, number of values per band) for a similarity. The values per band are as many
    as possible, up to `_MOST_VALUES`, provided that `RECALL` of the pairs with this similarity become
    candidates. If even one value per band does not reach that, there is one."""
    for per_band in range(_MOST_VALUES, 1, -1):
        n_bands = VALUES // per_band
        if 1 - (1 - similarity**per_band) ** n_bands >= RECALL:
            return n_bands, per_band
    return VALUES, 1


def near_duplicates(
    questions: Iterable[str], get_question: Callable[[int], str], similarity: float
) -> Iterator[SimilarPair]:
    """Yield each question that resembles an earlier one, with the first one that it is found to resemble.
    Pairs of questions with the same `question_key` are left out.

    `get_question` returns a question by its position, from 0. `similarity` is above 0 and at most 1. Raises,
    when it is iterated, DataError if rensa is missing and OSError if the hashes cannot be stored.
    """
    require_library()
    n_bands, per_band = bands(similarity)
    with tempfile.TemporaryDirectory(prefix="near-duplicates-") as folder:
        files = [Path(folder, f"band{band}") for band in range(n_bands)]
        reported = np.zeros(_write_bands(questions, files, per_band), dtype=bool)
        for path in files:
            for later, first in _candidates(np.fromfile(path, dtype=np.uint64)):
                if reported[later]:
                    continue
                question, earlier = get_question(later), get_question(first)
                actual = jaccard(question, earlier)
                if similarity <= actual and question_key(question) != question_key(earlier):
                    reported[later] = True
                    yield SimilarPair(later, first, actual)


def trigrams(question: str) -> list[str]:
    """Return the 3-grams of a question; a question of at most three characters is a single gram."""
    text = question_key(question)
    return [text[i : i + GRAM] for i in range(len(text) - GRAM + 1)] or [text]


def jaccard(first: str, second: str) -> float:
    """Return the similarity of two questions, from 0 to 1."""
    first_grams, second_grams = set(trigrams(first)), set(trigrams(second))
    return len(first_grams & second_grams) / len(first_grams | second_grams)


def _write_bands(questions: Iterable[str], files: list[Path], per_band: int) -> int:
    """Write the hashes of all questions in each band, one file per band, and return the number of
    questions. `per_band` is the number of values of a band."""
    from rensa import RMinHash

    remaining = iter(questions)
    n_questions = 0
    with name_in_errors(files[0].parent), ExitStack() as stack:
        opened = [stack.enter_context(path.open("wb")) for path in files]
        while batch := list(islice(remaining, _BATCH)):
            n_questions += len(batch)
            matrix = RMinHash.digest_matrix_from_token_sets(list(map(trigrams, batch)), VALUES, _SEED)
            signatures = np.array(matrix.to_rows(), dtype=np.uint64)
            for band, file in enumerate(opened):
                # Not with `tofile`, whose errors have no number, and which is silent if closing fails.
                file.write(_hash_rows(signatures[:, band * per_band : (band + 1) * per_band]).tobytes())
    return n_questions


def _hash_rows(part: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each row of `part`, which has the shape (questions, values): FNV-1a over values
    instead of bytes."""
    hashes = np.full(len(part), 0xCBF29CE484222325, dtype=np.uint64)
    for column in part.T:
        hashes = (hashes ^ column) * np.uint64(0x100000001B3)
    return hashes


def _candidates(hashes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (later, earlier) positions of questions with the same hash, for each later question at most the
    first `COMPARED` earlier ones."""
    # Sorting brings equal hashes together, in groups in which the questions keep their order.
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins_group = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    starts = np.maximum.accumulate(np.where(begins_group, np.arange(len(order)), 0))
    rank_in_group = np.arange(len(order)) - starts
    for position in np.flatnonzero(rank_in_group):
        for earlier in range(min(int(rank_in_group[position]), COMPARED)):
            yield int(order[position]), int(order[starts[position] + earlier])
