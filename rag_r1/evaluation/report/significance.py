"""Significance tests for two runs on the same questions.

    mcnemar      exact, for answers that are right or wrong, one for each question (McNemar, Psychometrika
                 1947; the exact form is a binomial test of the questions on which the runs differ)
    permutation  for any score: whether the run that a score belongs to matters (Fisher; recommended for F1 by
                 Dror et al., ACL 2018). Signs of the differences are flipped by question, so samples of a
                 question stay together
    bootstrap_p  paired bootstrap (Koehn, EMNLP 2004; in the form of Berg-Kirkpatrick et al., EMNLP 2012)
    holm         correction for several tests (Holm, Scand. J. Statistics 1979)

All are two-sided. A p-value from random draws is (hits + 1) / (draws + 1), so that it is never 0 (Phipson
and Smyth, arXiv 1603.05766).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

#: Signs that are held in memory at a time.
_CELLS = 4_000_000


def mcnemar(only_first: int, only_second: int) -> float:
    """The p-value, in (0, 1], from the numbers of questions that only one of the two runs has right."""
    differ, fewer = only_first + only_second, min(only_first, only_second)
    ways = 1  # of `differ` over 0
    total = 0
    for i in range(fewer + 1):
        total += ways
        ways = ways * (differ - i) // (i + 1)
    # Whole numbers are divided exactly, however large; the quotient itself may be too small for a float.
    return min(1.0, max(2 * total / (1 << differ), sys.float_info.min))


def permutation(differences: np.ndarray, rng: np.random.Generator, resamples: int = 10_000) -> float:
    """The p-value, in (0, 1], of the sum of `differences`, (questions,).

    For a mean over sources, divide each difference by the number of its source's questions. If there are no
    more than `resamples` ways to flip the signs, all are tried, and the p-value is exact.
    """
    moved = differences[differences != 0]
    if not len(moved):
        return 1.0
    # Equal sizes are made equal in all bits.
    size = np.abs(moved).max()
    moved = np.round(moved / size, 12)
    least = abs(moved.sum()) - 1e-9  # of a tie the last bits depend on the order of summation
    if len(moved) < 63 and 2 ** len(moved) <= resamples:
        signs = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float(np.mean(np.abs((1 - 2 * signs) @ moved) >= least))
    sizes, counts = np.unique(np.abs(moved), return_counts=True)
    few = 4 * len(sizes) <= len(moved)
    hits, step = 0, max(1, _CELLS // len(sizes if few else moved))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        if few:  # of `count` differences of a size, a binomial number is positive
            sums = (2.0 * rng.binomial(counts, 0.5, (rows, len(sizes))) - counts) @ sizes
        else:
            sums = (1.0 - 2.0 * rng.integers(0, 2, (rows, len(moved)), dtype=np.int8)) @ moved
        hits += int((np.abs(sums) >= least).sum())
    return (hits + 1) / (resamples + 1)


def bootstrap_p(value: float, replicates: np.ndarray) -> float:
    """The p-value, in (0, 1], of a difference, from its bootstrap replicates, (resamples,).

    Under the null hypothesis replicates scatter around 0 as they do around the difference.
    """
    is_extreme = np.abs(replicates - value) >= abs(value) - 1e-12
    return (int(is_extreme.sum()) + 1) / (len(replicates) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p-values, in the same order: each is significant at any level at which Holm's procedure
    rejects it."""
    adjusted = [0.0] * len(p_values)
    running_max = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running_max = max(running_max, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running_max
    return adjusted
